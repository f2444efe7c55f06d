// One box for every id: events, items, the keys of limits, and what applications keep.

import {query as asQuery} from './api.js'
import {at, badge, card, h, link, show, table, update} from './dom.js'
import {FOUND} from './places.js'
import {count, moment} from './words.js'

export const search = {
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
          unavailable.map(kind => h('p', {class: 'notice'}, `Could not search for a ${FOUND[kind].name}: no answer.`)),
          table(
            `What begins with ${q}`,
            ['Kind', 'Id', 'Status', 'Time', ''],
            results.map(each => [
              FOUND[each.kind].name,
              link(each.id, ...FOUND[each.kind].place(each)),
              each.plans ? `spent under ${each.plans.join(', ')}` : (each.status ?? '').replace('_', ' ').toLowerCase(),
              each.at ? moment(each.at) : '',
              [each.exact && badge('exact', 'good'), each.itemType && badge(each.itemType)],
            ]),
            `Nothing begins so. Searched: ${searched.map(kind => FOUND[kind].name).join(', ')}. A limit’s key has to be whole${searched.includes('item') ? '' : '; items, queues and configs need the scope view'}.`,
          ),
          results.length > 0 && h('p', {class: 'soft'}, `${count(results.length)} found, at most five of a kind.`),
        )
      },
    }
  },
}
