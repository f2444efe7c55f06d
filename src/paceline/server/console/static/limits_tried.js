// What a limit is, where it is kept, and how another one is tried, made and undone: the limit of a config, with a re-plan of
// what is booked, and the rate of a queue.

import {call, get, path, query} from './api.js'
import {insteadOf, perSecond} from './limit_trial.js'
import {count, durationMs, spanOf} from './words.js'

const CONFIG = '/admin/rate-limit/config'
const REPLAN = '/api/v1/slots/replan'

/** Changes a config, unless somebody else did since.
 *  @returns {Promise<any>} */
const changed = (active, changes, dryRun = false) =>
  call(
    'POST',
    CONFIG,
    {configName: active.configName, ...changes, dryRun},
    {
      headers: {'If-Match': `"${active.version}"`},
      changes: !dryRun,
    },
  )

const replanned = (configName, direction, more) =>
  call('POST', REPLAN, {configName, direction, ...more}, {changes: !more.dryRun})

/** The limit of a config, of which `active` is the version in force. */
export const configLimit = active => {
  const size = durationMs(active.windowSize)
  return {
    step: 1000 / size,
    preview: limit => tryConfig(active, Math.max(1, Math.round((limit * size) / 1000))),
  }
}

/** What another maximum per window would do to what is booked; it is made with a re-plan of that.
 *  @returns {Promise<import('./limit_trial.js').Preview>} */
export async function tryConfig(active, maxPerWindow) {
  const {configName} = active
  const way = maxPerWindow > active.maxPerWindow ? 'earlier' : 'spread'
  const [plan, tried] = await Promise.all([
    replanned(configName, way, {dryRun: true, maxPerWindow}),
    changed(active, {maxPerWindow}, true),
  ])
  return {
    verb: 'Change it and re-plan',
    words: [
      `${count(maxPerWindow)} in ${spanOf(active.windowSize)} instead of ${count(active.maxPerWindow)}. `,
      plan.moved
        ? [
            `${count(plan.moved)} of ${count(plan.examined)} booked slots would move ${way === 'spread' ? 'later' : way}`,
            insteadOf('; the last one would run at ', plan.lastAfter, plan.lastBefore),
            '.',
          ]
        : 'No booked slot would move.',
      tried.warnings.filter(() => way !== 'spread').map(({detail}) => ` ${detail}.`),
    ],
    async change() {
      const made = await changed(active, {maxPerWindow})
      const moved = await replanned(configName, way, {dryRun: false})
      return {
        verb: 'Undo',
        words: [
          `${configName} takes ${count(maxPerWindow)} in ${spanOf(active.windowSize)}; ${count(moved.moved)} slots were moved.`,
        ],
        change: async () => (await tryConfig(made, active.maxPerWindow)).change(),
      }
    },
  }
}

/** The rate of a queue, of which `flow` shows the present one. */
export const queueRate = flow => ({
  step: flow.limit >= 5 ? 1 : flow.limit >= 0.5 ? 0.1 : 1 / 60,
  preview: limit => tryRate(flow.name, limit, asRate(limit)),
})

/** A rate as text: of few per second, per minute. */
const asRate = limit => (Number.isInteger(limit) ? `${limit}/second` : `${Math.max(1, Math.round(limit * 60))}/minute`)

/** @returns {Promise<import('./limit_trial.js').Preview>} */
async function tryRate(itemType, limit, rate) {
  const [now, then, config] = await Promise.all([
    get(query('/admin/flow', {itemType})),
    get(query('/admin/flow', {itemType, limit})),
    get(path('/admin/dispatch', itemType)),
  ])
  return {
    verb: 'Change the rate',
    words: [
      `${perSecond(limit)} per second instead of ${perSecond(now.limit)}. `,
      now.waiting
        ? [insteadOf(`The last of ${count(now.waiting)} that wait would begin at `, then.doneBy, now.doneBy), '.']
        : 'Nothing waits.',
    ],
    change: () => setRate(itemType, rate, config.rate),
  }
}

async function setRate(itemType, rate, before) {
  await call('PATCH', path('/admin/dispatch', itemType), {rate})
  return {
    verb: 'Undo',
    words: [`The rate of ${itemType} is ${rate}.`],
    change: () => setRate(itemType, before, rate),
  }
}
