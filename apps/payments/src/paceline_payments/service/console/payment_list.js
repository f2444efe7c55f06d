// Payments in order of their ids.

import {query as asQuery} from './api.js'
import {badge, card, h, link, table, update} from './dom.js'
import {chosen, filterForm, isNarrowed, pager, sortHeading, totalOf} from './list.js'
import {moment} from './words.js'

const PAGE = 50
export const KINDS = {
  PROCESSING: 'good',
  ACCEPTED: 'busy',
  SCHEDULED: '',
  PENDING: 'busy',
  FAILED: 'wrong',
  UNKNOWN: 'warn',
  REJECTED: 'wrong',
  RETURNED: 'warn',
  CANCELLED: 'off',
}
const FILTERS = [
  {
    name: 'status',
    label: 'Status',
    options: Object.keys(KINDS)
      .filter(each => each !== 'REJECTED')
      .map(each => [each, each.toLowerCase()]),
  },
  {name: 'prefix', label: 'Id begins with', maxlength: 128},
  {name: 'feed', label: 'Feed', maxlength: 255},
  {name: 'from', label: 'Runs from', time: true},
  {name: 'to', label: 'Runs before', time: true},
]

export const status = name => badge(name.toLowerCase(), KINDS[name] ?? '')

/** A card, and how it is refreshed. */
export function paymentList(shell, query) {
  const [list, parts] = [h('div'), ['payments']]
  return {
    element: card('All payments', filterForm(shell, parts, query, FILTERS), list),
    async refresh(read) {
      const given = {...chosen(query, FILTERS), sort: query.sort, cursor: query.cursor, limit: PAGE, total: 'true'}
      const {payments, next, total} = await read(asQuery('/api/v1/payments', given))
      const id = sortHeading('Payment', 'id', parts, query)
      update(
        list,
        totalOf(total, 'payment matches.', 'payments match.'),
        table(
          'Payments',
          [id, 'Status', ['Amount', 'number'], 'From', 'To', 'Runs at', 'Feed', ['Reason', 'text']],
          payments.map(payment => [
            link(payment.paymentId, 'payments', payment.paymentId),
            status(payment.status),
            `${payment.amount} ${payment.currency}`,
            payment.payer.name,
            payment.payee.name,
            moment(payment.scheduledTime),
            payment.feedId ? link(payment.feedId, 'feeds', payment.feedId) : '',
            payment.reason ?? '',
          ]),
          isNarrowed(query, FILTERS) || query.cursor
            ? 'No payment matches.'
            : ['No payment was submitted. Try ', h('code', {}, 'paceline payments submit feed.csv'), '.'],
        ),
        pager(parts, query, next),
      )
    },
  }
}
