// Dead letters that failed alike, as groups: looked at, requeued or discarded as one.

import {path} from './api.js'
import {button, card, h, link, table, update} from './dom.js'
import {BASE, changed, VERBS} from './queue.js'
import {count, moment} from './words.js'

const SHOWN = 20

/** Draws the groups into `root`; returns how they are refreshed. */
export function errorGroups(root, shell, type) {
  const filterOf = error => ({status: 'DEAD_LETTER', errorGroup: error})

  const press = (verb, {error, count: many}) =>
    button(
      VERBS[verb].title,
      async () => {
        await changed(shell, type, verb, {filter: filterOf(error)}, '')
        shell.refresh()
      },
      {
        kind: verb === 'discard' ? 'quiet danger' : 'quiet',
        missing: shell.missing('operate'),
        'data-key': `${verb} group ${error}`,
        'aria-label': `${VERBS[verb].title} the ${count(many)} that failed with ${error}`,
      },
    )

  return async read => {
    const {errors} = await read(`${path(BASE, type)}/errors`)
    update(
      root,
      errors.length > 0 &&
        card(
          'Dead letters by error',
          table(
            'Dead letters by error',
            [['Items', 'number'], ['Error', 'text'], 'Since', 'Last', 'Example', ''],
            errors
              .slice(0, SHOWN)
              .map(group => [
                count(group.count),
                link(group.error, 'dispatch', type, filterOf(group.error)),
                moment(group.firstAt),
                moment(group.lastAt),
                link(group.example, 'dispatch', type, 'item', group.example),
                h('div', {class: 'row'}, press('requeue', group), press('discard', group)),
              ]),
          ),
          errors.length > SHOWN &&
            h(
              'p',
              {class: 'soft'},
              `The largest ${SHOWN} of ${count(errors.length)} groups: `,
              h('code', {}, `paceline queue errors ${type}`),
              ' lists them all.',
            ),
        ),
    )
  }
}
