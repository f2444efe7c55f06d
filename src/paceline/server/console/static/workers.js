// Who works on which queue, and what the service depends on.

import {badge, card, h, link, show, table, update} from './dom.js'
import {ITEMS} from './places.js'
import {count, distance, moment, span} from './words.js'

const BREAKERS = {closed: 'good', half_open: 'warn', open: 'wrong'}

export const workers = {
  open(root) {
    const [list, servers, breakers] = [h('div'), h('div'), h('div')]
    show(
      root,
      h('h1', {}, 'Workers'),
      card('Workers', list),
      card('Dependencies', servers),
      card('Circuit breakers', breakers),
    )

    async function showWorkers(read) {
      const {workers: all, unattended} = await read('/admin/workers')
      update(
        list,
        unattended.map(type =>
          h(
            'p',
            {class: 'notice'},
            'Nobody works on ',
            link(type, 'dispatch', type),
            '. Start a worker: ',
            h('code', {}, ITEMS[type] ? 'paceline worker all' : 'paceline worker MODULE:NAME'),
          ),
        ),
        table(
          'Workers',
          ['Host', 'Process', 'Version', 'Engine', 'Works on', 'Runs', 'Since', 'Last sign', 'State'],
          all.map(worker => [
            h('b', {}, worker.host),
            worker.pid,
            worker.version,
            `${worker.engine}: ${worker.roles.join(', ')}`,
            worker.itemTypes.map((type, n) => [n > 0 && ', ', link(type, 'dispatch', type, {status: 'DISPATCHED'})]),
            running(worker),
            moment(worker.startedAt),
            [moment(worker.seenAt), h('small', {class: 'soft'}, ` ${distance(worker.seenAt)}`)],
            worker.alive ? badge('alive', 'good') : badge('silent', 'wrong'),
          ]),
          ['No worker runs. Try ', h('code', {}, 'paceline worker all'), '.'],
        ),
      )
    }

    async function showDependencies(read) {
      const known = await read('/admin/dependencies')
      update(
        servers,
        table(
          'Dependencies',
          ['Name', 'State', ['Answered within', 'number'], ['Details', 'text']],
          known.dependencies.map(each => [
            h('b', {}, each.name),
            badge(each.status, each.status === 'UP' ? 'good' : 'wrong'),
            span(each.latencyMs),
            each.reason ?? details(each.data),
          ]),
        ),
      )
      update(
        breakers,
        table(
          'Circuit breakers',
          ['Protects', 'State', 'Since', ['Reason', 'text'], 'Next probe'],
          known.breakers.map(each => [
            [h('b', {}, each.name), each.scope === 'process' && h('small', {class: 'soft'}, ' in this process')],
            badge(each.state.replace('_', ' '), BREAKERS[each.state] ?? ''),
            each.since ? moment(each.since) : '',
            each.reason ?? '',
            each.probeInSecs === undefined || each.probeInSecs === null ? '' : `in ${span(each.probeInSecs * 1000)}`,
          ]),
        ),
      )
    }

    return {
      every: 5000,
      refresh: read => Promise.all([showWorkers(read), showDependencies(read)]),
    }
  },
}

const running = ({running: now, concurrency}) =>
  now === null ? '–' : concurrency === null ? count(now) : `${count(now)} of ${count(concurrency)} per type`

const details = data =>
  Object.entries(data ?? {})
    .map(([name, value]) => `${name} ${value}`)
    .join(', ')
