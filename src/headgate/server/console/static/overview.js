// What matters now: dependencies, rates, queues, the next windows.

import {get, query, text} from './api.js'
import {sparkline, windowBars} from './charts.js'
import {badge, card, h, link, show, table, update} from './dom.js'
import {Rates, samples, sum} from './prometheus.js'
import {count, moment, rate, span} from './words.js'

const rates = new Rates()

/** @type {[string, (found: import('./prometheus.js').Sample[]) => number][]} */
const COUNTERS = [
  ['Slots booked', found => sum(found, 'rate_limiter_slots_assigned_total')],
  ['Slots refused', found => sum(found, 'rate_limiter_slot_assignment_failures_total')],
  ['Limit decisions', found => sum(found, 'rate_limiter_decisions_total')],
  ['Limit denials', found => sum(found, 'rate_limiter_decisions_total', each => each.outcome !== 'OK')],
  ['Executions', found => sum(found, 'dispatch_workflow_started_total')],
  ['Dead letters', found => sum(found, 'dispatch_dead_letter_total')],
  ['Messages', found => sum(found, 'notification_send_duration_seconds_count')],
]
const DEPTHS = ['READY', 'CLAIMED', 'DISPATCHED', 'FAILED', 'COMPLETED', 'DEAD_LETTER', 'CANCELLED']

export const overview = {
  title: 'Overview',
  open(root, shell) {
    const [health, speeds, queues, windows] = ['tiles', 'tiles', '', ''].map(kind => h('div', {class: kind}))
    show(
      root,
      h('h1', {}, 'Overview'),
      card('Dependencies', health),
      card('Per second', speeds, h('small', {class: 'soft'}, 'Of this machine’s processes, from /metrics.')),
      card('Queues', queues),
      shell.may('read') ? card('Next windows of the default config', windows) : null,
    )

    async function readHealth() {
      const {checks} = await get('/health/ready', {also: [503]})
      update(
        health,
        checks.map(check =>
          h(
            'div',
            {class: 'tile'},
            h('b', {}, check.name),
            badge(check.status, check.status === 'UP' ? 'good' : 'wrong'),
            check.data?.reason && h('small', {}, check.data.reason),
          ),
        ),
      )
    }

    async function readRates() {
      const found = samples(await text('/metrics'))
      for (const [name, total] of COUNTERS) rates.note(name, total(found))
      update(
        speeds,
        COUNTERS.map(([name, total]) =>
          h(
            'div',
            {class: 'tile rate'},
            h('span', {}, name),
            h('b', {class: 'big'}, rate(rates.now(name))),
            sparkline(rates.history(name), `${name}, the last minutes`),
            h('small', {class: 'soft'}, `${count(total(found))} in all`),
          ),
        ),
      )
      return found
    }

    async function readQueues(found) {
      const types = shell.may('admin') ? await asked() : counted(found)
      update(
        queues,
        table(
          'Queues',
          [
            'Item type',
            ...DEPTHS.slice(0, 3).map(each => [each, 'number']),
            ['DEAD LETTERS', 'number'],
            ['Oldest is late by', 'number'],
            '',
          ],
          types.map(({itemType, enabled, attended, depth, late}) => [
            shell.may('admin') ? link(itemType, 'dispatch', itemType) : itemType,
            ...DEPTHS.slice(0, 3).map(status => count(depth[status] ?? 0)),
            depth.DEAD_LETTER
              ? shell.may('admin')
                ? link(badge(count(depth.DEAD_LETTER), 'wrong'), 'dispatch', itemType, 'DEAD_LETTER')
                : badge(count(depth.DEAD_LETTER), 'wrong')
              : '0',
            late === null || late === undefined ? '–' : span(late * 1000),
            enabled === false
              ? badge('stopped', 'warn')
              : attended === false
                ? badge('nobody works on it', 'wrong')
                : '',
          ]),
          'No item type has been dispatched yet.',
        ),
      )
    }

    async function readWindows() {
      const forecast = await get(query('/api/v1/forecast', {events: 1}))
      const [first] = forecast.nextWindows
      update(
        windows,
        windowBars(forecast.nextWindows, `${forecast.configName}: how full the next windows are`),
        h(
          'p',
          {class: 'soft'},
          h('b', {}, forecast.configName),
          ` takes ${count(first?.limit)} a window. An event that asks now would run `,
          forecast.firstWindow
            ? ['in the window of ', moment(forecast.firstWindow), '.']
            : 'nowhere: nothing is free before the horizon.',
        ),
      )
    }

    return {
      every: 2000,
      async refresh() {
        await readHealth()
        await readQueues(await readRates())
        if (shell.may('read')) await readWindows()
      },
    }
  },
}

async function asked() {
  const {itemTypes} = await get('/admin/dispatch')
  return Promise.all(
    itemTypes.map(async ({itemType, enabled}) => {
      const stats = await get(`/admin/dispatch/${encodeURIComponent(itemType)}/stats`)
      return {itemType, enabled, attended: stats.attended, depth: stats.depth, late: stats.oldestReadyAgeSecs}
    }),
  )
}

/** The same from the metrics, as the dispatcher last saw it: without the scope for more. */
function counted(found) {
  const types = new Map()
  for (const [name, {item_type: itemType, status}, value] of found) {
    if (name !== 'dispatch_queue_depth') continue
    if (!types.has(itemType)) types.set(itemType, {itemType, depth: {}})
    types.get(itemType).depth[status] = value
  }
  return [...types.values()]
}
