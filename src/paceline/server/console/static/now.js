// What matters now, in the whole installation: dependencies, rates, queues, the next windows.

import {get} from './api.js'
import {sparkline, windowBars} from './charts.js'
import {badge, card, h, link, show, table, update} from './dom.js'
import {flowPicture} from './flow_picture.js'
import {LimitTrial} from './limit_trial.js'
import {queueRate} from './limits_tried.js'
import {NUMBERS} from './places.js'
import {queueSwitch} from './queue_switch.js'
import {count, moment, rate, span} from './words.js'

const DEPTHS = ['READY', 'CLAIMED', 'DISPATCHED']
const UNKNOWN = () => h('p', {class: 'empty'}, 'The database does not answer.')

const NOTHING_FLOWS = 'No work has been queued yet.'

export const now = {
  open(root, shell) {
    const panel = h('div')
    const [state, picture, queues, speeds, windows, health] = ['', '', '', 'tiles', '', 'tiles'].map(kind =>
      h('div', {class: kind}),
    )
    show(
      root,
      h('h1', {}, 'Now'),
      h('section', {class: 'card', 'aria-label': 'The flow of work'}, state, picture, panel),
      card('Queues', queues),
      card(
        'Per second',
        speeds,
        h('small', {class: 'soft'}, 'Of all processes, in the last whole minute. Each process writes once a minute.'),
      ),
      card('Next windows of the default config', windows),
      card('Dependencies', health),
    )

    /** @type {any} */
    const shown = {}
    /** @type {{name: string, trial: LimitTrial | null}} */
    let tried = {name: '', trial: null}

    /** The picture, with a handle on its limit if it is a rate that may be set here. */
    function draw() {
      const {flow} = shown
      if (!flow) return update(picture, NOTHING_FLOWS)
      if (tried.name !== flow.name && tried.trial?.value == null) {
        const trial =
          flow.limitBy === 'rate' && shell.may('admin') ? new LimitTrial(shell, queueRate(flow), draw) : null
        tried = {name: flow.name, trial}
        show(panel, trial?.element)
      }
      // Nobody knows when an application's calls go on while its breaker is open.
      const stands = flow.limitBy === 'application' && shown.checks.some(({data}) => data?.reason === 'BreakerOpen')
      const seen = stands ? {...flow, doneBy: null} : flow
      update(picture, flowPicture(seen, tried.name === flow.name ? tried.trial : null))
    }

    /** Brings the page up to date with the parts that changed. */
    function receive(parts) {
      Object.assign(shown, parts)
      update(state, stateOf(shown, shell))
      draw()
      update(health, shown.checks.map(dependency))
      update(
        speeds,
        shown.numbers
          ? shown.numbers.filter(({name}) => NUMBERS[name]).map(each => number(each, shown.queues))
          : UNKNOWN(),
      )
      update(queues, shown.queues ? queueTable(shown.queues, shell) : UNKNOWN())
      update(windows, shown.windows ? nextWindows(shown.windows) : UNKNOWN())
    }

    return {
      every: 2000,
      stream: '/api/v1/console/stream',
      version: '',
      receive,
      async refresh() {
        const parts = await get('/api/v1/console/overview')
        this.version = parts.version
        receive(parts)
      },
    }
  },
}

const LATE_SECONDS = 60
const BEHIND_SECONDS = 5

/** A sentence of state, and what somebody must do now, each with where to do it. */
function stateOf({checks, queues}, shell) {
  const problems = [...checks.flatMap(check => away(check)), ...(queues ?? []).flatMap(queue => open(queue, shell))]
  if (!problems.length) return h('p', {class: 'state'}, wellOrBehind(queues ?? []))
  return [
    h(
      'p',
      {class: 'state'},
      h('b', {}, `${count(problems.length)} open ${problems.length === 1 ? 'problem' : 'problems'}`),
    ),
    h(
      'ul',
      {class: 'problems'},
      problems.map(each => h('li', {}, each)),
    ),
  ]
}

/** Nobody must do anything: nothing is late, or what is late is on its way. */
function wellOrBehind(queues) {
  const behind = queues.filter(({oldestReadyAgeSecs: age}) => age !== null && age > BEHIND_SECONDS)
  if (!behind.length) return badge('All is well', 'good')
  const names = behind.map(
    ({itemType, late, oldestReadyAgeSecs: age}) => `${itemType} (${areDue(late)}, ${span(age * 1000)} late)`,
  )
  return [badge('Catching up', 'warn'), ` ${names.join(', ')}`]
}

const away = ({name, status, data}) =>
  status === 'UP'
    ? []
    : [[badge(name, 'wrong'), ` can’t do its job: ${REASONS[data?.reason] ?? data?.reason ?? 'it does not answer'}`]]

/** What reasons mean, by the classes that name them. */
const REASONS = {BreakerOpen: 'its calls failed, so none leaves until it answers again'}

/** What is wrong with a queue. Its link leads to the rows, and to the switch. */
function open({itemType, enabled, attended, depth, late, oldestReadyAgeSecs: age}, shell) {
  const waits = age !== null && age > LATE_SECONDS
  const to = (words, query) =>
    shell.may('view') ? link(words, 'dispatch', itemType, ...(query ? [query] : [])) : words
  return [
    waits &&
      !attended &&
      enabled && [
        badge('Nobody works', 'wrong'),
        ' on ',
        to(itemType),
        `: ${areDue(late)}. Start a worker that serves it: `,
        h('code', {}, 'paceline worker'),
      ],
    late > 0 &&
      !enabled && [
        badge('Paused', 'warn'),
        ' ',
        to(itemType),
        `: ${areDue(late)}, and none starts. `,
        queueSwitch({itemType, enabled}, shell),
      ],
    waits &&
      attended &&
      enabled && [badge('Late', 'warn'), ' ', to(itemType), `: ${areDue(late)}, the first for ${span(age * 1000)}`],
    depth.UNKNOWN && [
      badge('Unknown', 'wrong'),
      ' ',
      to(`${count(depth.UNKNOWN)} of ${itemType}`, {status: 'UNKNOWN'}),
      ' wait to be resolved',
    ],
    depth.DEAD_LETTER && [
      badge('Dead letters', 'wrong'),
      ' ',
      to(`${count(depth.DEAD_LETTER)} of ${itemType}`, {status: 'DEAD_LETTER'}),
      ' wait for a decision',
    ],
  ].filter(Boolean)
}

const areDue = late => `${count(late)} ${late === 1 ? 'is' : 'are'} due`

const dependency = check =>
  h(
    'div',
    {class: 'tile'},
    h('b', {}, check.name),
    badge(check.status, check.status === 'UP' ? 'good' : 'wrong'),
    check.data?.reason && h('small', {}, check.data.reason),
  )

function number({name, perSecond, lastDay, minutes}, queues) {
  const title = NUMBERS[name]
  const waiting = queues?.reduce((total, queue) => total + (queue.depth.DEAD_LETTER ?? 0), 0)
  return h(
    'div',
    {class: 'tile rate'},
    h('span', {}, title),
    h('b', {class: 'big'}, rate(perSecond)),
    sparkline(minutes, `${title}, the last 15 minutes`),
    h(
      'small',
      {class: 'soft'},
      `${count(lastDay)} in 24 hours`,
      name === 'deadLetters' && waiting !== undefined && ` · ${count(waiting)} waiting now`,
    ),
  )
}

const queueTable = (queues, shell) =>
  table(
    'Queues',
    [
      'Item type',
      ...DEPTHS.map(each => [each, 'number']),
      ['DEAD LETTERS', 'number'],
      ['Oldest is late by', 'number'],
      '',
    ],
    queues.map(({itemType, enabled, attended, depth, oldestReadyAgeSecs: late}) => [
      shell.may('view') ? link(itemType, 'dispatch', itemType) : itemType,
      ...DEPTHS.map(status => count(depth[status] ?? 0)),
      deadLetters(itemType, depth.DEAD_LETTER, shell),
      late === null ? '–' : span(late * 1000),
      enabled ? (attended ? '' : badge('nobody works on it', 'wrong')) : badge('stopped', 'warn'),
    ]),
    'No item type has been dispatched yet.',
  )

function deadLetters(itemType, items, shell) {
  if (!items) return '0'
  const shown = badge(count(items), 'wrong')
  return shell.may('view') ? link(shown, 'dispatch', itemType, 'DEAD_LETTER') : shown
}

function nextWindows(forecast) {
  const [first] = forecast.nextWindows
  return [
    windowBars(forecast.nextWindows, `${forecast.configName}: how full the next windows are`),
    h(
      'p',
      {class: 'soft'},
      h('b', {}, forecast.configName),
      ` takes ${count(first?.limit)} per window. An event that asks now would run `,
      forecast.firstWindow
        ? ['in the window of ', moment(forecast.firstWindow), '.']
        : 'nowhere: nothing is free before the horizon.',
    ),
  ]
}
