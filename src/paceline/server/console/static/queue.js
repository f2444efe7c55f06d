// What the views of a queue share: its statuses, and what can be done with items, one by one or all that match.

import {call, get, path, query} from './api.js'
import {asked} from './dialog.js'
import {badge, field, h, input, say} from './dom.js'
import {count, instant, ZONE} from './words.js'

export const STATUSES = ['READY', 'CLAIMED', 'DISPATCHED', 'FAILED', 'COMPLETED', 'UNKNOWN', 'DEAD_LETTER', 'CANCELLED']
const KINDS = {
  UNKNOWN: 'wrong',
  DEAD_LETTER: 'wrong',
  FAILED: 'wrong',
  COMPLETED: 'good',
  DISPATCHED: 'busy',
  CLAIMED: 'busy',
  CANCELLED: 'off',
}
const FINISHED = ['COMPLETED', 'CANCELLED']
export const BASE = '/admin/dispatch'

export const status = name => badge(name.replace('_', ' ').toLowerCase(), KINDS[name] ?? '')

/** How far an execution says it is. */
export const progressBar = ({itemId, progress}) =>
  progress &&
  h(
    'span',
    {class: 'progress'},
    h('progress', {max: 1, value: progress.fraction, 'aria-label': `Progress of ${itemId}`}),
    ` ${Math.round(progress.fraction * 100)} % ${progress.text}`,
  )

export const VERBS = {
  requeue: {
    title: 'Requeue',
    past: 'requeued',
    effect: 'Each item runs again at its time, with all of its attempts.',
    kind: 'main',
    takes: status => status === 'DEAD_LETTER',
  },
  discard: {
    title: 'Discard',
    past: 'discarded',
    effect: 'It never runs, and its context is forgotten. This can’t be undone.',
    kind: 'danger',
    takes: status => status === 'DEAD_LETTER',
  },
  reschedule: {
    title: 'Reschedule',
    past: 'rescheduled',
    effect: 'What you leave empty stays as it is.',
    kind: 'main',
    takes: status => status === 'READY',
  },
  cancel: {
    title: 'Cancel',
    past: 'cancelled',
    effect: 'It never runs; if it runs already, it is stopped within a second. This can’t be undone.',
    kind: 'danger',
    takes: status => status !== 'DEAD_LETTER' && !FINISHED.includes(status),
  },
}

/** Times to preview a change with, besides none. Which one does not matter. */
const TIMES = {reschedule: ['2030-01-01T00:00:00Z']}

/** What can be done with items that stand so; `''` for any status. */
export const verbsFor = statuses =>
  Object.keys(VERBS).filter(verb => statuses.every(each => each === '' || VERBS[verb].takes(each)))

/** Changes items, by their `ids` or all that match `filter`, if the user agrees; whether it was done. The time of
 *  items with a booked slot is `fixed`. */
export async function changed(shell, type, verb, selection, what, {fixed = false} = {}) {
  const {title, past, effect, kind} = VERBS[verb]
  let [whom, text] = [what, effect]
  if (selection.filter) {
    const previews = await shell.attempt(() => Promise.all([undefined, ...(TIMES[verb] ?? [])].map(previewed)))
    if (!previews) return false
    const [{matching, changing, whole}, moved] = previews
    if (!changing) {
      say(`None of the ${count(matching)} items that match can be ${past}.`)
      return false
    }
    whom = `${whole ? '' : 'at least '}${count(changing)} ${changing === 1 ? 'item' : 'items'}`
    if (changing < matching)
      text = `${count(matching)} match; ${count(matching - changing)} of them can’t be ${past} and stay as they are. ${effect}`
    if (moved && moved.changing < changing)
      text += ` If you give a time, only ${count(moved.changing)} change: the other ${count(changing - moved.changing)} have a booked slot, and stay as they are.`
  }

  function previewed(executeAt) {
    return get(query(`${path(BASE, type)}/preview`, {change: verb, executeAt, ...selection.filter}))
  }
  const fields = verb === 'reschedule' ? [h('div', {class: 'grid'}, scheduleFields(fixed))] : []
  const values = await asked(`${title} ${whom}?`, text, title, {kind, fields})
  if (values === null) return false
  const change = verb === 'reschedule' ? schedule(values) : {}
  if (verb === 'reschedule' && !Object.keys(change).length) {
    say('Nothing is changed: give a time, a priority or a lane.')
    return false
  }
  const done = await shell.attempt(
    () => call('POST', `${path(BASE, type)}/${verb}`, {...selection, ...change}),
    ({count: many}) => `${count(many)} ${many === 1 ? 'item was' : 'items were'} ${past}.`,
  )
  return Boolean(done)
}

const scheduleFields = fixed => [
  !fixed && field('New time', input({name: 'executeAt', type: 'datetime-local', step: 1}), ZONE),
  field('New priority', input({name: 'priority', type: 'number', min: 0, max: 9}), '0 first, 9 last'),
  field('New lane', input({name: 'lane', maxlength: 64})),
]

const schedule = ({executeAt, priority, lane}) => ({
  ...(executeAt && {executeAt: instant(executeAt)}),
  ...(priority && {priority: Number(priority)}),
  ...(lane.trim() && {lane: lane.trim()}),
})
