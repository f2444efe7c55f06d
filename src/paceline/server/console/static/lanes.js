// The lanes of a queue: who has how much in it. Lanes take turns, so that a long one does not starve the others.

import {path} from './api.js'
import {card, h, link, show, table, update} from './dom.js'
import {BASE} from './queue.js'
import {count, distance} from './words.js'

export function laneView(root, _shell, type) {
  const list = h('div')
  show(root, h('p', {}, link(`← Items of ${type}`, 'dispatch', type)), card(`Lanes of ${type}`, list))
  const some = (many, lane, status) => (many ? link(count(many), 'dispatch', type, {lane, status}) : '0')
  return async read => {
    const {lanes, total} = await read(`${path(BASE, type)}/lanes`)
    update(
      list,
      table(
        `Lanes of ${type}`,
        ['Lane', ['Ready', 'number'], ['In flight', 'number'], ['Dead letters', 'number'], 'Oldest is due'],
        lanes.map(each => [
          link(each.lane, 'dispatch', type, {lane: each.lane}),
          some(each.ready, each.lane, 'READY'),
          some(each.inFlight, each.lane, 'DISPATCHED'),
          some(each.deadLetters, each.lane, 'DEAD_LETTER'),
          distance(each.oldestDueAt),
        ]),
        ['Nothing waits in any lane. A task gets one with ', h('code', {}, '.options(lane="acme").enqueue(…)'), '.'],
      ),
      total > lanes.length && h('p', {class: 'soft'}, `The longest ${count(lanes.length)} of ${count(total)} lanes.`),
    )
  }
}
