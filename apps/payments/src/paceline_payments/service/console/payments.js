// All payments, and one: where it stands, and how it got there.

import {call, path} from './api.js'
import {agreed} from './dialog.js'
import {button, card, facts, field, form, h, input, link, show, table, update} from './dom.js'
import {lookUp} from './lookup.js'
import {paymentList, status} from './payment_list.js'
import {distance, moment} from './words.js'

export const payments = {
  title: 'Payments',
  found: {payment: {name: 'payment', place: ({id}) => ['payments', id]}},
  items: {PAYMENT: {words: 'Show the payment', place: id => ['payments', id]}},
  numbers: {downstreamCalls: 'Calls to the bank'},
  needs: 'read',
  open(root, shell, [id = ''], query) {
    const wanted = input({name: 'id', required: true, maxlength: 128, value: id, placeholder: 'pay-123'})
    const shown = h('div')
    show(
      root,
      h('h1', {}, 'Payments'),
      card(
        'Look one up',
        form(
          values => shell.go('payments', values.id),
          h('div', {class: 'row'}, field('Payment id', wanted), h('button', {class: 'main'}, 'Look up')),
        ),
      ),
      shown,
    )
    if (!id) {
      const list = paymentList(shell, query)
      show(shown, list.element)
      return {every: 3000, refresh: list.refresh}
    }

    async function cancel() {
      if (!(await agreed(`Cancel ${id}?`, 'It is called off and its slot is free again.', 'Cancel the payment'))) return
      await shell.attempt(() => call('DELETE', path('/api/v1/payments', id)), `${id} is cancelled.`)
      shell.refresh()
    }

    async function retry() {
      const effect = 'It is sent to the bank again. An unknown one is decided by the bank’s answer first.'
      if (!(await agreed(`Send ${id} again?`, effect, 'Send it again', {kind: 'main'}))) return
      await shell.attempt(
        () => call('POST', `${path('/api/v1/payments', id)}/retry`),
        ({retryRequestedBy}) =>
          retryRequestedBy ? 'The retry is requested; a second person confirms it.' : `${id} is sent again.`,
      )
      shell.refresh()
    }

    return {
      every: 2500,
      async refresh(read) {
        const payment = await lookUp(read, shown, path('/api/v1/payments', id))
        if (!payment) return
        update(
          shown,
          card(
            payment.paymentId,
            facts(
              ['Status', status(payment.status)],
              payment.reason && ['Reason', payment.reason],
              payment.retryRequestedBy && ['Retry requested by', payment.retryRequestedBy],
              ['Amount', h('b', {}, `${payment.amount} ${payment.currency}`), ` and a fee of ${payment.fee}`],
              ['From', payment.payer.name, ' ', h('code', {}, payment.payer.iban ?? payment.payer.account)],
              ['To', payment.payee.name, ' ', h('code', {}, payment.payee.iban ?? payment.payee.account)],
              ['Requested for', moment(payment.executeAt)],
              ['Runs at', moment(payment.scheduledTime, {fractions: true}), ` (${distance(payment.scheduledTime)})`],
              ['Value date', payment.valueDate],
              payment.reference && ['Reference', h('code', {}, payment.reference)],
              payment.configName && ['Config', payment.configName],
              payment.feedId && ['Feed', link(payment.feedId, 'feeds', payment.feedId)],
            ),
            h(
              'div',
              {class: 'row'},
              link('Its slot', 'slots', payment.configName ?? '', `payment:${payment.paymentId}`),
              shell.may('view') && link('Its queue item', 'dispatch', 'PAYMENT', 'item', payment.paymentId),
              ['FAILED', 'UNKNOWN'].includes(payment.status) &&
                button('Send it again', retry, {kind: 'main', missing: shell.missing('assign'), 'data-key': 'retry'}),
              payment.status === 'SCHEDULED' &&
                button('Cancel this payment', cancel, {
                  kind: 'danger',
                  missing: shell.missing('assign'),
                  'data-key': 'cancel',
                }),
            ),
          ),
          card(
            'What happened',
            table(
              'History',
              ['At', 'From', 'To', ['Detail', 'text']],
              payment.audit.map(entry => [
                moment(entry.createdAt, {fractions: true}),
                entry.statusBefore ?? '',
                entry.statusAfter,
                entry.detail ?? '',
              ]),
            ),
          ),
        )
      },
    }
  },
}
