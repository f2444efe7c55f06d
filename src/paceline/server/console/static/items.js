// The items of a queue: filtered, sorted, page by page; and what can be done with many of them at once.

import {query as asQuery, path} from './api.js'
import {button, card, facts, h, link, show, table, update} from './dom.js'
import {errorGroups} from './error_groups.js'
import {chosen, filterForm, isNarrowed, MOST_COUNTED, pager, sortHeading} from './list.js'
import {BASE, changed, progressBar, STATUSES, status, VERBS, verbsFor} from './queue.js'
import {count, distance, moment} from './words.js'

const PAGE = 50
const FILTERS = [
  {name: 'status', label: 'Status', options: STATUSES.map(each => [each, each.replace('_', ' ').toLowerCase()])},
  {name: 'prefix', label: 'Id begins with', maxlength: 255},
  {name: 'lane', label: 'Lane', maxlength: 64},
  {name: 'error', label: 'Last error contains', maxlength: 2000, hint: '* stands for any characters'},
  {name: 'errorGroup', label: 'Error group', maxlength: 2000, hint: 'as in the list of groups'},
  {name: 'from', label: 'Runs from', time: true},
  {name: 'to', label: 'Runs before', time: true},
]

export function listView(root, shell, type, query) {
  const parts = ['dispatch', type]
  const filter = chosen(query, FILTERS)
  const [groups, total, actions, items, settings] = ['', 'total', 'row', '', ''].map(kind => h('div', {class: kind}))
  const marked = new Map() // ids to statuses
  let everything = false // all that match, not only what is marked
  const grouped = query.status === 'DEAD_LETTER' ? errorGroups(groups, shell, type) : null
  show(
    root,
    groups,
    card(`Items of ${type}`, filterForm(shell, parts, query, FILTERS), total, actions, items),
    settings,
  )

  async function act(verb) {
    const selection = everything ? {filter} : {ids: [...marked.keys()]}
    if (await changed(shell, type, verb, selection, some(marked.size))) forget()
    shell.refresh()
  }

  function forget() {
    marked.clear()
    everything = false
  }

  function buttons(page, matching) {
    const selected = everything ? matching : some(marked.size)
    const verbs = everything ? verbsFor([query.status ?? '']) : marked.size ? verbsFor([...marked.values()]) : []
    const markable = page.filter(isOpen)
    return [
      (everything || marked.size > 0) && h('b', {}, `${selected} selected`),
      verbs.map(verb =>
        button(`${VERBS[verb].title} ${everything ? 'all that match' : some(marked.size)}`, () => act(verb), {
          kind: VERBS[verb].kind,
          missing: shell.missing('operate'),
          'data-key': verb,
        }),
      ),
      (everything || marked.size > 0) &&
        button(
          'Select none',
          () => {
            forget()
            shell.refresh()
          },
          {kind: 'quiet', 'data-key': 'select'},
        ),
      !everything &&
        marked.size < markable.length &&
        button(
          'Select this page',
          () => {
            for (const item of markable) marked.set(item.itemId, item.status)
            shell.refresh()
          },
          {kind: 'quiet', 'data-key': 'select-page'},
        ),
      !everything &&
        markable.length > 0 &&
        isNarrowed(query, FILTERS) &&
        button(
          `Select all ${matching} that match`,
          () => {
            marked.clear()
            everything = true
            shell.refresh()
          },
          {kind: 'quiet', 'data-key': 'select-all'},
        ),
    ]
  }

  const box = item =>
    h('input', {
      type: 'checkbox',
      'aria-label': `Mark ${item.itemId}`,
      checked: everything || marked.has(item.itemId),
      disabled: everything || !isOpen(item),
      'data-key': `mark ${item.itemId}`,
      onchange: event => {
        event.target.checked ? marked.set(item.itemId, item.status) : marked.delete(item.itemId)
        shell.refresh()
      },
    })

  return async (read, known) => {
    const given = {...filter, sort: query.sort, cursor: query.cursor, limit: PAGE, total: 'true'}
    const [page] = await Promise.all([read(asQuery(`${path(BASE, type)}/items`, given)), grouped?.(read)])
    const {itemTypes, stats} = await known
    const index = itemTypes.findIndex(each => each.itemType === type)
    const matching = page.total > MOST_COUNTED ? `more than ${count(MOST_COUNTED)}` : count(page.total)
    update(
      total,
      h(
        'p',
        {class: 'soft'},
        `${matching.replace('more', 'More')} ${page.total === 1 ? 'item matches' : 'items match'}. `,
        link('Lanes', 'dispatch', type, 'lanes'),
      ),
    )
    update(actions, buttons(page.items, matching))
    update(
      items,
      table(
        `Items of ${type}`,
        [
          'Mark',
          sortHeading('Item', 'id', parts, query),
          'Status',
          sortHeading('Runs at', 'executeAt', parts, query),
          'Due',
          'Lane',
          ['Priority', 'number'],
          ['Attempt', 'number'],
          sortHeading('Changed', 'updatedAt', parts, query),
          ['Last error', 'text'],
        ],
        page.items.map(item => [
          box(item),
          link(item.itemId, 'dispatch', type, 'item', item.itemId),
          [status(item.status), progressBar(item)],
          moment(item.executeAt),
          item.status === 'READY' ? distance(item.dueAt) : '',
          item.lane,
          item.priority,
          count(item.attempt),
          moment(item.updatedAt),
          h('span', {class: 'clip', title: item.lastError}, item.lastError ?? ''),
        ]),
        isNarrowed(query, FILTERS) || query.cursor ? 'No item matches.' : emptyQueue(type),
      ),
      pager(parts, query, page.next),
    )
    if (index >= 0)
      update(settings, settingsOf(itemTypes[index], settings.querySelector('details')?.open, stats[index]))
  }
}

const isOpen = item => !['COMPLETED', 'CANCELLED'].includes(item.status)

const some = many => `${count(many)} ${many === 1 ? 'item' : 'items'}`

const emptyQueue = type => [
  'The queue is empty. Items come from your tasks (',
  h('code', {}, '@tasks.task'),
  ') or from ',
  h('code', {}, `queue.enqueue("${type}", "an-id")`),
  ' in Python.',
]

function settingsOf(config, open, stats) {
  return h(
    'details',
    {class: 'card', open},
    h('summary', {'data-key': 'settings'}, `Settings of ${config.itemType}`),
    facts(
      ...Object.entries(config)
        .filter(([key]) => key !== 'itemType')
        .map(([key, value]) => [key, h('code', {}, String(value))]),
      stats && ['in flight', count(stats.inFlight)],
    ),
    h('small', {class: 'soft'}, `Change them with paceline queue, or PATCH ${BASE}/${config.itemType}.`),
  )
}
