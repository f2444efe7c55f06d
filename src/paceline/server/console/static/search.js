// One box for every id: events, payments, items, messages, feeds and the keys of limits.

import {query as asQuery} from './api.js'
import {at, badge, card, h, link, show, table, update} from './dom.js'
import {count, moment} from './words.js'

/** Where the console shows what was found. */
const PLACES = {
  event: ({id}) => ['slots', '', id],
  payment: ({id}) => ['payments', id],
  item: ({itemType, id}) => ['dispatch', itemType, 'item', id],
  message: ({id}) => ['messages', id],
  feed: ({id}) => ['feeds', id],
  key: ({id, plans}) => ['limits', '', {key: id, plans: plans.join(', ')}],
}
const KINDS = {
  event: 'event',
  payment: 'payment',
  item: 'queue item',
  message: 'message',
  feed: 'feed',
  key: 'limit key',
}

export const search = {
  title: 'Search',
  needs: 'read',
  hidden: true,
  open(root, _shell, _parts, {q = ''}) {
    const found = h('div', {role: 'status'})
    show(root, h('h1', {}, 'Search'), card(q ? `“${q}”` : 'Nothing to search for', found))
    const box = /** @type {HTMLInputElement} */ (at('search-box'))
    if (document.activeElement !== box) box.value = q
    if (!q) {
      show(found, h('p', {class: 'empty'}, 'Write an id, or how it begins, into the box at the top; / goes there.'))
      return {}
    }
    return {
      async refresh(read) {
        const {results, searched, unavailable} = await read(asQuery('/api/v1/search', {q}))
        update(
          found,
          unavailable.map(kind => h('p', {class: 'notice'}, `Could not search for a ${KINDS[kind]}: no answer.`)),
          table(
            `What begins with ${q}`,
            ['Kind', 'Id', 'Status', 'Time', ''],
            results.map(each => [
              KINDS[each.kind],
              link(each.id, ...PLACES[each.kind](each)),
              each.plans ? `spent under ${each.plans.join(', ')}` : (each.status ?? '').replace('_', ' ').toLowerCase(),
              each.at ? moment(each.at) : '',
              [each.exact && badge('exact', 'good'), each.itemType && badge(each.itemType)],
            ]),
            `Nothing begins so. Searched: ${searched.map(kind => KINDS[kind]).join(', ')}. A limit’s key has to be whole${searched.includes('item') ? '' : '; items need the scope admin'}.`,
          ),
          results.length > 0 && h('p', {class: 'soft'}, `${count(results.length)} found, at most five of a kind.`),
        )
      },
    }
  },
}

/** Makes the box at the top work: Enter searches, and / goes there from anywhere. */
export function watchBox(shell) {
  const box = /** @type {HTMLInputElement} */ (at('search-box'))
  at('search').addEventListener('submit', event => {
    event.preventDefault()
    if (box.value.trim()) shell.go('search', {q: box.value.trim()})
  })
  addEventListener('hashchange', () => {
    if (!location.hash.startsWith('#/search') && document.activeElement !== box) box.value = ''
  })
  document.addEventListener('keydown', event => {
    const target = /** @type {HTMLElement} */ (event.target)
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || at('search').hidden) return
    if (target.closest('input, select, textarea, [contenteditable], dialog')) return
    event.preventDefault()
    box.focus()
    box.select()
  })
}
