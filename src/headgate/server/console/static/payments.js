// One payment: where it stands, and how it got there.

import {call, get, Problem, path} from './api.js'
import {agreed} from './dialog.js'
import {badge, button, card, facts, field, form, h, input, link, show, table, update} from './dom.js'
import {distance, moment} from './words.js'

const KINDS = {
  PROCESSING: 'good',
  ACCEPTED: 'busy',
  SCHEDULED: '',
  FAILED: 'wrong',
  UNKNOWN: 'warn',
  REJECTED: 'wrong',
  CANCELLED: 'off',
}

export const payments = {
  title: 'Payments',
  needs: 'read',
  open(root, shell, [id = '']) {
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
    if (!id) return {}

    async function cancel() {
      if (!(await agreed(`Cancel ${id}?`, 'It is called off and its slot is free again.', 'Cancel the payment'))) return
      await shell.attempt(() => call('DELETE', path('/api/v1/payments', id)), `${id} is cancelled.`)
      shell.refresh()
    }

    return {
      every: 2500,
      async refresh() {
        let payment
        try {
          payment = await get(path('/api/v1/payments', id))
        } catch (error) {
          if (!(error instanceof Problem) || ![400, 404].includes(error.status)) throw error
          update(shown, h('p', {class: 'notice'}, error.message))
          return
        }
        update(
          shown,
          card(
            payment.paymentId,
            facts(
              ['Status', badge(payment.status.toLowerCase(), KINDS[payment.status] ?? '')],
              payment.reason && ['Reason', payment.reason],
              ['Amount', h('b', {}, `${payment.amount} ${payment.currency}`), ` and a fee of ${payment.fee}`],
              ['From', payment.payer.name, ' ', h('code', {}, payment.payer.iban)],
              ['To', payment.payee.name, ' ', h('code', {}, payment.payee.iban)],
              ['Wanted at', moment(payment.executeAt)],
              ['Runs at', moment(payment.scheduledTime, {fractions: true}), ` (${distance(payment.scheduledTime)})`],
              ['Value date', payment.valueDate],
              payment.reference && ['Reference', h('code', {}, payment.reference)],
              payment.configName && ['Config', payment.configName],
            ),
            h(
              'div',
              {class: 'row'},
              link('Its slot', 'slots', payment.configName ?? '', `payment:${payment.paymentId}`),
              shell.may('admin') && link('Its queue item', 'dispatch', 'PAYMENT', 'item', payment.paymentId),
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
