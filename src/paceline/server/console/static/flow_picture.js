// The flow of a queue as one picture: what arrived, the limit and what waits before it, what left under it, what is booked.

import {address} from './address.js'
import {h, s} from './dom.js'
import {clock, count, moment, span} from './words.js'

const WIDTH = 1000
const WAIT = {top: 6, bottom: 92} // where the height of what waits is drawn, …
const PACE = {top: 112, bottom: 232} // … and where what arrives and leaves per second is
const HIGH = 240
const SHORT = 300 // seconds before and after now
const LONG = 900
const MAX_MARKS = 12
const STUCK_SECONDS = 60 // with nothing begun or done: somebody should look

/** The picture of a flow, as `/admin/flow` has it, with what it says in words; with a handle on the limit, if another one
 *  may be tried.
 *  @param {any} flow
 *  @param {import('./limit_trial.js').LimitTrial | null} [trial] */
export function flowPicture(flow, trial = null) {
  const now = flow.seconds.start + flow.seconds.done.length - 1
  const doneIn = flow.doneBy ? Date.parse(flow.doneBy) / 1000 - now : 0
  const reach = doneIn > SHORT || flow.due.counts.slice(SHORT).some(Boolean) ? LONG : SHORT
  const past = values => values.slice(-reach)
  const [arrived, done, waited] = [flow.seconds.arrived, flow.seconds.done, flow.seconds.waited].map(past)
  const due = flow.due.counts.slice(0, reach)
  const x = second => ((second - (now - reach)) / (2 * reach)) * WIDTH
  const most =
    Math.max(flow.limit ? flow.limit * 1.6 : 1, ...done, flow.limit ? 0 : Math.max(...arrived, ...due)) * 1.05
  const scale = {x, first: now - reach + 1, most}
  const said = sentence(flow)
  return h(
    'figure',
    {class: 'flow'},
    h('p', {class: 'flow-says'}, said),
    h(
      'div',
      {class: 'flow-canvas'},
      s(
        'svg',
        {
          viewBox: `0 0 ${WIDTH} ${HIGH}`,
          role: 'img',
          'aria-label': `${flow.name}: ${text(said)}`,
          preserveAspectRatio: 'none',
        },
        s('rect', {x: x(now), y: 0, width: WIDTH - x(now), height: HIGH, class: 'flow-ahead'}),
        waiting(waited, flow, now, scale),
        s('path', {d: steps(arrived, scale), class: 'flow-arrived'}),
        s('path', {d: steps(done, scale), class: 'flow-done'}),
        s('path', {d: steps(due, {...scale, first: now}), class: 'flow-due'}),
        drain(flow, now, reach, scale),
        flow.limit !== null && limitLine(flow.limit, scale, 'flow-limit'),
        trial && trial.value !== null && limitLine(trial.value, scale, 'flow-tried'),
        s('line', {x1: x(now), x2: x(now), y1: 0, y2: HIGH, class: 'flow-now'}),
        flow.marks.slice(-MAX_MARKS).map(each => mark(each, scale)),
      ),
      trial && flow.limit !== null && trial.handle(flow, {top: PACE.top / HIGH, bottom: PACE.bottom / HIGH, most}),
    ),
    h(
      'figcaption',
      {},
      h('span', {}, clock((now - reach) * 1000)),
      h('span', {class: 'legend'}, legend(flow)),
      h('span', {}, clock((now + reach) * 1000)),
    ),
    flow.marks.length > 0 &&
      h(
        'ul',
        {class: 'flow-marks'},
        flow.marks
          .slice(-MAX_MARKS)
          .reverse()
          .map(({at, who, what}) => h('li', {}, moment(at), ' ', h('b', {}, who), ` ${what}`)),
      ),
  )
}

/** Whether what is due has stood still for a minute, whatever the limit would allow. */
const isStuck = flow =>
  flow.doneBy === null || (flow.late > 0 && flow.lateSecs >= STUCK_SECONDS && !flow.begun && !flow.done)

/** What the picture says: what waits and until when, what leaves, and the limit. */
const sentence = flow => (flow.limitBy === 'config' ? ofConfig(flow) : ofQueue(flow))

const ofConfig = flow => [
  h('a', {href: address('configs', flow.name), class: 'flow-name'}, flow.name),
  ' ',
  flow.waiting
    ? [h('b', {}, `${count(flow.waiting)} booked`), ' within a day, the last at ', moment(flow.doneBy)]
    : 'nothing is booked',
  ` · ${count(flow.done)} ran in the last minute · peak `,
  h('b', {}, `${count(flow.peak)} of ${each(flow.limit)}`),
  ' per second in 15 minutes',
]

function ofQueue(flow) {
  const end = isStuck(flow)
    ? [h('b', {class: 'wrong'}, ', and nothing moves')]
    : [', the last begins by ', moment(flow.doneBy)]
  const late =
    flow.lateSecs !== null && flow.lateSecs >= 1 ? `, the first is late by ${span(flow.lateSecs * 1000)}` : ''
  return [
    h('a', {href: address('dispatch', flow.name), class: 'flow-name'}, flow.name),
    ' ',
    flow.waiting ? [h('b', {}, `${count(flow.waiting)} wait`), late, end] : 'nothing waits',
    flow.running ? ` · ${count(flow.running)} run` : '',
    ` · ${count(flow.done)} done in the last minute`,
    paceOf(flow),
    flow.unknown ? [' · ', link(flow, 'UNKNOWN', `${count(flow.unknown)} of unknown effect`)] : '',
    flow.dead ? [' · ', link(flow, 'DEAD_LETTER', `${count(flow.dead)} dead letters`)] : '',
  ]
}

/** The peak under the limit, if it is what begins that is limited. An application limits its calls: what has begun may
 *  wait for one. */
const paceOf = ({limit, limitBy, peak}) => {
  if (limit === null) return ` · peak ${count(peak)} per second`
  if (limitBy === 'application') return [' · at most ', h('b', {}, each(limit)), ' calls per second']
  return [' · peak ', h('b', {}, `${count(peak)} of ${each(limit)}`), ' per second in 24 h']
}

const link = (flow, status, words) => h('a', {href: address('dispatch', flow.name, {status})}, words)
const each = limit => (Number.isInteger(limit) ? count(limit) : limit.toPrecision(2))
const text = parts =>
  parts
    .flat(3)
    .map(part => (part instanceof Node ? part.textContent : part))
    .join('')

/** A silhouette of counts per second: one path, whatever their number. What is above the scale is cut off at its top. */
function steps(values, {x, first, most}) {
  const height = value => PACE.bottom - (Math.min(value, most) / most) * (PACE.bottom - PACE.top)
  const path = values.map((value, n) => `V${height(value).toFixed(1)}H${x(first + n + 1).toFixed(1)}`)
  return `M${x(first).toFixed(1)} ${PACE.bottom}${path.join('')}V${PACE.bottom}Z`
}

/** How many waited, as a hill before the limit. */
function waiting(waited, flow, now, {x, first}) {
  const most = Math.max(1, ...waited)
  const height = value => WAIT.bottom - (value / most) * (WAIT.bottom - WAIT.top)
  const path = waited.map((value, n) => `L${x(first + n).toFixed(1)} ${height(value).toFixed(1)}`)
  return s('path', {
    d: `M${x(first).toFixed(1)} ${WAIT.bottom}${path.join('')}L${x(now).toFixed(1)} ${WAIT.bottom}Z`,
    class: hill(flow),
  })
}

const hill = flow => (flow.late && flow.lateSecs >= 1 ? 'flow-waits late' : 'flow-waits')

/** How what waits would drain at the limit. */
function drain(flow, now, reach, {x}) {
  if (isStuck(flow) || !flow.waiting) return null
  const most = Math.max(1, ...flow.seconds.waited.slice(-reach))
  const top = WAIT.bottom - (flow.waiting / most) * (WAIT.bottom - WAIT.top)
  const end = Math.max(now + 1, Date.parse(flow.doneBy) / 1000)
  return s('path', {
    d: `M${x(now)} ${top.toFixed(1)}L${x(end).toFixed(1)} ${WAIT.bottom}`,
    class: 'flow-drain',
    'vector-effect': 'non-scaling-stroke',
  })
}

function limitLine(limit, {most}, kind) {
  const y = PACE.bottom - (Math.min(limit, most) / most) * (PACE.bottom - PACE.top)
  return s('line', {x1: 0, x2: WIDTH, y1: y, y2: y, class: kind, 'vector-effect': 'non-scaling-stroke'})
}

function mark({at, who, what}, {x}) {
  const place = x(Date.parse(at) / 1000)
  return s(
    'g',
    {},
    s('title', {}, `${clock(at)} ${who}: ${what}`),
    s('line', {x1: place, x2: place, y1: 0, y2: HIGH, class: 'flow-mark', 'vector-effect': 'non-scaling-stroke'}),
  )
}

const legend = flow =>
  [
    [hill(flow), flow.limitBy === 'config' ? 'booked' : 'waiting'],
    ['flow-arrived', 'arrived'],
    ['flow-done', 'done'],
    ['flow-due', 'due'],
    flow.limit !== null && [
      'flow-limit',
      `limit ${each(flow.limit)} ${flow.limitBy === 'application' ? 'calls ' : ''}per second`,
    ],
  ]
    .filter(Boolean)
    .map(([kind, words]) => [h('i', {class: kind}), `${words} `])
