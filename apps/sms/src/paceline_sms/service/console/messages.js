// Messages of the SMS gateway: where each one is. Their texts and numbers are not shown.

import {query as asQuery, path} from './api.js'
import {badge, card, facts, h, link, show, table, update} from './dom.js'
import {chosen, filterForm, isNarrowed, pager, sortHeading, totalOf} from './list.js'
import {lookUp} from './lookup.js'
import {count, moment} from './words.js'

const BASE = '/api/messages'
const PAGE = 50
const KINDS = {
  queued: '',
  sent: 'busy',
  delivered: 'good',
  failed: 'wrong',
  expired: 'warn',
  cancelled: '',
  unknown: 'warn',
}
const FILTERS = [
  {name: 'status', label: 'Status', options: Object.keys(KINDS)},
  {name: 'userId', label: 'User', inputmode: 'numeric', pattern: '[0-9]{1,18}'},
  {name: 'prefix', label: 'Id begins with', maxlength: 64},
]

const status = name => badge(name, KINDS[name] ?? '')

export const messages = {
  title: 'Messages',
  found: {message: {name: 'message', place: ({id}) => ['messages', id]}},
  numbers: {messages: 'Messages'},
  needs: 'read',
  open(root, shell, [id = ''], query) {
    const body = h('div')
    const view = id ? one(body, id) : list(body, shell, query)
    show(root, h('h1', {}, 'Messages'), body)
    return {every: 3000, refresh: view}
  },
}

function list(root, shell, query) {
  const [rows, parts] = [h('div'), ['messages']]
  show(root, card('All messages', filterForm(shell, parts, query, FILTERS), rows))
  return async read => {
    const given = {...chosen(query, FILTERS), sort: query.sort, cursor: query.cursor, limit: PAGE, total: 'true'}
    const {messages: page, next, total} = await read(asQuery(BASE, given))
    update(
      rows,
      totalOf(total, 'message matches.', 'messages match.'),
      table(
        'Messages',
        [
          'Message',
          'User',
          'Status',
          ['Segments', 'number'],
          ['Attempts', 'number'],
          sortHeading('Accepted', 'acceptedAt', parts, query, {first: '-acceptedAt'}),
          'Provider',
          ['Reason', 'text'],
        ],
        page.map(message => [
          link(message.messageId, 'messages', message.messageId),
          link(String(message.userId), 'messages', {userId: message.userId}),
          status(message.status),
          count(message.segments),
          count(message.attempts),
          moment(message.acceptedAt),
          message.provider ?? '',
          message.reason ?? '',
        ]),
        isNarrowed(query, FILTERS) || query.cursor
          ? 'No message matches.'
          : ['No message was accepted. Try ', h('code', {}, 'paceline sms send 7 "hello"'), '.'],
      ),
      pager(parts, query, next),
    )
  }
}

function one(root, id) {
  const shown = h('div')
  show(root, h('p', {}, link('← All messages', 'messages')), shown)
  return async read => {
    const message = await lookUp(read, shown, path(BASE, id))
    if (!message) return
    const times = [
      ['Accepted', message.acceptedAt],
      ['Expires', message.expiresAt],
      ['Sent', message.sentAt],
      ['Delivered', message.deliveredAt],
      ['Failed', message.failedAt],
    ]
    update(
      shown,
      card(
        id,
        facts(
          ['Status', status(message.status)],
          message.reason && ['Reason', message.reason],
          ['User', link(String(message.userId), 'messages', {userId: message.userId})],
          ['Segments', count(message.segments)],
          ['Attempts', count(message.attempts)],
          message.provider && ['Provider', message.provider, ' ', h('code', {}, message.providerId ?? '')],
          ...times.filter(([, at]) => at).map(([name, at]) => [name, moment(at, {fractions: true})]),
        ),
      ),
    )
  }
}
