// Make it run then, once: the queues, their kill switches, their items and their dead letters.

import {address} from './address.js'
import {query as asQuery} from './api.js'
import {badge, h, link, show, update} from './dom.js'
import {flowPicture} from './flow_picture.js'
import {itemView} from './item.js'
import {listView} from './items.js'
import {laneView} from './lanes.js'
import {LimitTrial} from './limit_trial.js'
import {queueRate} from './limits_tried.js'
import {BASE, STATUSES, status} from './queue.js'
import {queueSwitch} from './queue_switch.js'
import {count, span} from './words.js'

export const dispatch = {
  open(root, shell, [type = '', part = '', ...rest], query) {
    const [types, picture, tried, body] = [h('div', {class: 'tiles'}), h('div'), h('div'), h('div')]
    const flows = type && !['item', 'lanes'].includes(part)
    const flowing = h('section', {class: 'card', 'aria-label': `The flow of ${type}`, hidden: !flows}, picture, tried)
    show(root, h('h1', {}, 'Dispatch'), types, flowing, body)
    // An older form of address has the status as a part of it.
    const filtered = STATUSES.includes(part) ? {status: part, ...query} : query
    const view = !type
      ? null
      : part === 'item'
        ? itemView(body, shell, type, rest[0] ?? '')
        : part === 'lanes'
          ? laneView(body, shell, type)
          : listView(body, shell, type, filtered)

    async function showTypes(known) {
      const {itemTypes, stats} = await known
      update(
        types,
        itemTypes.length
          ? itemTypes.map((config, n) => tile(config, stats[n], config.itemType === type, shell))
          : h(
              'p',
              {class: 'empty'},
              'No item type has been dispatched yet. A task makes one; try ',
              h('code', {}, 'paceline demo'),
              '.',
            ),
      )
    }

    /** @type {any} */
    let flow
    /** @type {LimitTrial | null} */
    let trial = null

    async function showFlow(read) {
      flow = await read(asQuery('/admin/flow', {itemType: type}))
      if (!trial && flow.limitBy === 'rate' && shell.may('admin')) trial = new LimitTrial(shell, queueRate(flow), draw)
      draw()
    }

    function draw() {
      update(picture, flowPicture(flow, trial))
      show(tried, trial?.element)
    }

    return {
      every: 2500,
      refresh(read) {
        const known = read(asQuery(BASE, {stats: 'true'}))
        return Promise.all([showTypes(known), view?.(read, known), flows && showFlow(read)])
      },
    }
  },
}

function tile(config, stats, active, shell) {
  const late = stats.oldestReadyAgeSecs
  return h(
    'div',
    {class: active ? 'tile queue active' : 'tile queue'},
    h(
      'div',
      {class: 'row between'},
      h('b', {}, link(config.itemType, 'dispatch', config.itemType)),
      config.enabled
        ? stats.attended
          ? badge('running', 'good')
          : badge('nobody works on it', 'wrong')
        : badge('stopped', 'warn'),
    ),
    h(
      'div',
      {class: 'depths'},
      STATUSES.filter(each => stats.depth[each]).map(each =>
        h(
          'a',
          {href: address('dispatch', config.itemType, {status: each}), 'data-key': `${config.itemType}/${each}`},
          h('b', {}, count(stats.depth[each])),
          ' ',
          status(each),
        ),
      ),
    ),
    h(
      'small',
      {},
      `${count(stats.held)} held · ${count(stats.inFlight)} run · ${count(stats.workers)} ${stats.workers === 1 ? 'worker' : 'workers'}`,
    ),
    h('small', {}, late === null ? 'nothing is late' : `${count(stats.late)} late, the first by ${span(late * 1000)}`),
    queueSwitch(config, shell),
  )
}
