// Who changed what under /admin.

import {get, query} from './api.js'
import {badge, button, card, h, show, table, update} from './dom.js'
import {moment} from './words.js'

const PAGE = 100

export const audit = {
  title: 'Audit',
  needs: 'admin',
  open(root, shell) {
    const entries = h('div')
    const pages = [undefined]
    show(root, h('h1', {}, 'Audit'), card('Changes asked for under /admin', entries))
    return {
      every: 5000,
      async refresh() {
        const found = await get(query('/admin/audit', {limit: PAGE, before: pages.at(-1)}))
        update(
          entries,
          table(
            'Changes',
            ['At', 'Token', 'Change', 'Asked for', 'Outcome', 'Request id'],
            found.map(each => [
              moment(each.at, {fractions: true}),
              h('b', {}, each.caller),
              h('code', {}, `${each.method} ${each.path}`),
              each.detail ? h('code', {class: 'excerpt'}, each.detail) : '–',
              outcome(each.status),
              h('code', {class: 'soft'}, each.requestId),
            ]),
            'Nothing was changed yet.',
          ),
          h(
            'div',
            {class: 'row'},
            pages.length > 1 &&
              button(
                'Newer',
                () => {
                  pages.pop()
                  shell.refresh()
                },
                {kind: 'quiet', 'data-key': 'newer'},
              ),
            found.length === PAGE &&
              button(
                'Older',
                () => {
                  pages.push(found.at(-1).id)
                  shell.refresh()
                },
                {kind: 'quiet', 'data-key': `older ${found.at(-1)?.id}`},
              ),
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
