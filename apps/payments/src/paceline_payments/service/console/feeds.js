// Feeds of payments: where each stands, what it brought, and what was refused.

import {query as asQuery, call, PREFIX, path} from './api.js'
import {agreed} from './dialog.js'
import {badge, button, card, facts, h, link, show, table, update} from './dom.js'
import {chosen, filterForm, isNarrowed, pager, sortHeading, totalOf} from './list.js'
import {lookUp} from './lookup.js'
import {count, moment} from './words.js'

const BASE = '/api/v1/feeds'
const PAGE = 50
const KINDS = {RECEIVING: 'busy', HELD: 'busy', ACCEPTING: 'busy', DONE: 'good', REFUSED: 'wrong', CANCELLED: 'off'}
const FILTERS = [
  {name: 'state', label: 'State', options: Object.keys(KINDS).map(each => [each, each.toLowerCase()])},
  {name: 'prefix', label: 'Id or name begins with', maxlength: 255},
]

/** The state of a feed, in the colour of what became of its records: one that was refused is not green. */
function state(feed) {
  if (feed.state !== 'DONE' || !feed.rejected) return badge(feed.state.toLowerCase(), KINDS[feed.state] ?? '')
  const refused = `refused ${count(feed.rejected)} of ${count(feed.records)}`
  return badge(refused, feed.accepted || feed.duplicates ? 'warn' : 'wrong')
}

const share = feed => `${Math.round(feed.progress * 100)} %`
const sums = totals =>
  Object.entries(totals)
    .map(([currency, sum]) => `${sum} ${currency}`)
    .join(', ') || '–'

export const feeds = {
  title: 'Feeds',
  found: {feed: {name: 'feed', place: ({id}) => ['feeds', id]}},
  needs: 'read',
  open(root, shell, [id = ''], query) {
    const body = h('div')
    const view = id ? one(body, shell, id) : list(body, shell, query)
    show(root, h('h1', {}, 'Feeds'), body)
    return {every: 3000, refresh: view}
  },
}

function list(root, shell, query) {
  const [rows, parts] = [h('div'), ['feeds']]
  show(root, card('All feeds', filterForm(shell, parts, query, FILTERS), rows))
  return async read => {
    const given = {...chosen(query, FILTERS), sort: query.sort, cursor: query.cursor, limit: PAGE, total: 'true'}
    const {feeds: page, next, total} = await read(asQuery(BASE, given))
    update(
      rows,
      totalOf(total, 'feed matches.', 'feeds match.'),
      table(
        'Feeds',
        [
          'Feed',
          'Name',
          'State',
          ['Done', 'number'],
          ['Records', 'number'],
          ['Accepted', 'number'],
          ['Duplicates', 'number'],
          ['Rejected', 'number'],
          sortHeading('Received', 'createdAt', parts, query, {first: '-createdAt'}),
        ],
        page.map(feed => [
          link(feed.feedId, 'feeds', feed.feedId),
          feed.name ?? '',
          state(feed),
          share(feed),
          count(feed.records),
          count(feed.accepted),
          count(feed.duplicates),
          feed.rejected ? badge(count(feed.rejected), 'wrong') : '0',
          moment(feed.createdAt),
        ]),
        isNarrowed(query, FILTERS) || query.cursor
          ? 'No feed matches.'
          : ['No feed was received. Try ', h('code', {}, 'paceline payments submit feed.csv'), '.'],
      ),
      pager(parts, query, next),
    )
  }
}

function one(root, shell, id) {
  const shown = h('div')
  show(root, h('p', {}, link('← All feeds', 'feeds')), shown)

  async function cancel() {
    const effect = 'Payments whose execution has not begun are called off, and their slots are free again.'
    if (!(await agreed(`Cancel the feed ${id}?`, effect, 'Cancel the feed'))) return
    await shell.attempt(
      () => call('DELETE', path(BASE, id)),
      ({cancelled, notCancelled}) => `${count(cancelled)} payments were cancelled; ${count(notCancelled)} had begun.`,
    )
    shell.refresh()
  }

  async function release() {
    const effect = 'Its payments are accepted, and made at their times. Whoever submitted it can’t release it.'
    if (!(await agreed(`Release the feed ${id}?`, effect, 'Release the feed', {kind: 'main'}))) return
    await shell.attempt(() => call('POST', `${path(BASE, id)}/release`), `${id} is released.`)
    shell.refresh()
  }

  return async read => {
    const feed = await lookUp(read, shown, path(BASE, id))
    if (!feed) return
    update(
      shown,
      card(
        feed.name ? `${feed.name} (${id})` : id,
        facts(
          ['State', state(feed), ` ${share(feed)} done`],
          feed.reason && ['Reason', feed.reason],
          ['Format', feed.format],
          feed.configName && ['Config', feed.configName],
          ['Records', count(feed.records)],
          ['Accepted', count(feed.accepted)],
          ['Duplicates', count(feed.duplicates)],
          ['Rejected', count(feed.rejected)],
          ['Planned', sums(feed.planned)],
          ['Brought', sums(feed.totals)],
          feed.submittedBy && ['Submitted by', feed.submittedBy],
          feed.releasedBy && ['Released by', feed.releasedBy],
          ['Received', moment(feed.createdAt)],
          ['Changed', moment(feed.updatedAt)],
        ),
        h(
          'div',
          {class: 'row'},
          link('Its payments', 'payments', {feed: id}),
          h(
            'a',
            {href: `${PREFIX}${path(BASE, id)}/status-report`, download: `${id}-status-report.xml`},
            'Status report (pain.002)',
          ),
          feed.state === 'HELD' &&
            button('Release this feed', release, {
              kind: 'main',
              missing: shell.missing('assign'),
              'data-key': 'release',
            }),
          feed.state !== 'CANCELLED' &&
            feed.state !== 'REFUSED' &&
            button('Cancel this feed', cancel, {
              kind: 'danger',
              missing: shell.missing('assign'),
              'data-key': 'cancel',
            }),
        ),
        feed.rejected > 0 &&
          h(
            'p',
            {class: 'soft'},
            'The rejected records, to be corrected and sent again: ',
            h('code', {}, `GET ${BASE}/${id}/rejects?format=feed`),
          ),
      ),
    )
  }
}
