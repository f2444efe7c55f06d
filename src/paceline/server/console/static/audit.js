// Who changed what under /admin.

import {query as asQuery} from './api.js'
import {badge, card, h, link, show, table, update} from './dom.js'
import {moment} from './words.js'

const PAGE = 100

export const audit = {
  open(root, _shell, _parts, {before}) {
    const entries = h('div')
    show(root, h('h1', {}, 'Audit'), card('Changes asked for under /admin', entries))
    return {
      every: 5000,
      async refresh(read) {
        const page = await read(asQuery('/admin/audit', {limit: PAGE, before}))
        update(
          entries,
          table(
            'Changes',
            ['At', 'Token', 'Change', 'Asked for', 'Outcome', 'Request id'],
            page.map(each => [
              moment(each.at, {fractions: true}),
              h('b', {}, each.caller),
              h('code', {}, `${each.method} ${each.path}`),
              each.detail ? h('code', {class: 'excerpt'}, each.detail) : '–',
              outcome(each.status),
              h('code', {class: 'soft'}, each.requestId),
            ]),
            before ? 'Nothing older.' : 'Nothing was changed yet.',
          ),
          h(
            'nav',
            {class: 'row', 'aria-label': 'Pages of the list'},
            before && link('Newest', 'audit'),
            page.length === PAGE && link('Older', 'audit', {before: page.at(-1).id}),
          ),
        )
      },
    }
  },
}

const outcome = status =>
  status === null
    ? badge('under way, or its process died', 'warn')
    : badge(String(status), status < 300 ? 'good' : status < 500 ? 'warn' : 'wrong')
