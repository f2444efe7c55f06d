// The items of a queue, page by page, and what can be done with many of them at once.

import {get, path, query} from './api.js'
import {button, card, facts, field, h, link, select, show, table, update} from './dom.js'
import {BASE, moved, STATUSES, status} from './queue.js'
import {count, distance, moment} from './words.js'

const PAGE = 50

export function listView(root, shell, type, filter) {
  const chosen = select([['', 'all'], ...STATUSES], {value: filter})
  chosen.addEventListener('change', () => shell.go('dispatch', type, chosen.value))
  const [items, actions, settings] = [h('div'), h('div', {class: 'row'}), h('div')]
  const pages = ['']
  const marked = new Set()
  show(
    root,
    card(
      `Items of ${type}`,
      h('div', {class: 'row between'}, h('div', {class: 'row'}, field('Status', chosen)), actions),
      items,
    ),
    settings,
  )

  const move = async (verb, body, what) => {
    if (await moved(shell, type, verb, body, what)) marked.clear()
    shell.refresh()
  }

  return async (stats, config) => {
    const {items: found} = await get(
      query(`${path(BASE, type)}/items`, {status: filter, limit: PAGE, after: pages.at(-1)}),
    )
    const dead = stats?.depth.DEAD_LETTER ?? 0
    const some = `${count(marked.size)} marked ${marked.size === 1 ? 'item' : 'items'}`
    update(
      actions,
      marked.size > 0 && [
        button(`Requeue ${some}`, () => move('requeue', {ids: [...marked]}, some), {'data-key': 'requeue'}),
        button(`Discard ${some}`, () => move('discard', {ids: [...marked]}, some), {
          kind: 'danger',
          'data-key': 'discard',
        }),
      ],
      !marked.size &&
        dead > 0 && [
          button(
            `Requeue all ${count(dead)} dead letters`,
            () => move('requeue', {status: 'DEAD_LETTER'}, `all ${count(dead)} dead letters`),
            {'data-key': 'requeue-all'},
          ),
          button(
            'Discard them all',
            () => move('discard', {status: 'DEAD_LETTER'}, `all ${count(dead)} dead letters`),
            {kind: 'danger', 'data-key': 'discard-all'},
          ),
        ],
    )
    update(
      items,
      table(
        `Items of ${type}`,
        ['', 'Item', 'Status', 'Runs at', 'Due', ['Retries', 'number'], ['Last error', 'text']],
        found.map(item => [
          h('input', {
            type: 'checkbox',
            'aria-label': `Mark ${item.itemId}`,
            checked: marked.has(item.itemId),
            disabled: !['DEAD_LETTER', 'READY'].includes(item.status),
            'data-key': `mark ${item.itemId}`,
            onchange: event => {
              event.target.checked ? marked.add(item.itemId) : marked.delete(item.itemId)
              shell.refresh()
            },
          }),
          link(item.itemId, 'dispatch', type, 'item', item.itemId),
          status(item.status),
          moment(item.executeAt),
          item.status === 'READY' ? distance(item.dueAt) : '',
          count(item.retryCount),
          h('span', {class: 'clip', title: item.lastError}, item.lastError ?? ''),
        ]),
        filter ? `No item is ${filter.replace('_', ' ').toLowerCase()}.` : 'The queue is empty.',
      ),
      h(
        'div',
        {class: 'row'},
        pages.length > 1 &&
          button(
            'Back',
            () => {
              pages.pop()
              shell.refresh()
            },
            {kind: 'quiet', 'data-key': 'back'},
          ),
        found.length === PAGE &&
          button(
            'More',
            () => {
              pages.push(found.at(-1).itemId)
              shell.refresh()
            },
            {kind: 'quiet', 'data-key': `more ${found.at(-1)?.itemId}`},
          ),
      ),
    )
    if (!config) return
    const open = settings.querySelector('details')?.open
    update(
      settings,
      h(
        'details',
        {class: 'card', open},
        h('summary', {'data-key': 'settings'}, `Settings of ${type}`),
        facts(
          ...Object.entries(config)
            .filter(([key]) => key !== 'itemType')
            .map(([key, value]) => [key, h('code', {}, String(value))]),
        ),
        h('small', {class: 'soft'}, `Change them with headgate queue, or PATCH ${BASE}/${type}.`),
      ),
    )
  }
}
