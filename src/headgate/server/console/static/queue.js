// What the views of a queue share: its statuses, and moving items out of the dead letters.

import {call, path} from './api.js'
import {agreed} from './dialog.js'
import {badge} from './dom.js'
import {count} from './words.js'

export const STATUSES = ['READY', 'CLAIMED', 'DISPATCHED', 'FAILED', 'COMPLETED', 'DEAD_LETTER', 'CANCELLED']
const KINDS = {
  DEAD_LETTER: 'wrong',
  FAILED: 'wrong',
  COMPLETED: 'good',
  DISPATCHED: 'busy',
  CLAIMED: 'busy',
  CANCELLED: 'off',
}
export const BASE = '/admin/dispatch'

export const status = name => badge(name.replace('_', ' ').toLowerCase(), KINDS[name] ?? '')

const WORDS = {
  requeue: ['Requeue', 'requeued', 'Started again at its time, as new.', 'main'],
  discard: ['Discard', 'discarded', 'It never runs, and its context is forgotten. This can’t be undone.', 'danger'],
}

/** Requeues or discards items, by their ids or all dead letters, if the user agrees; whether it was done. */
export async function moved(shell, type, verb, body, what) {
  const [title, past, effect, kind] = WORDS[verb]
  if (!(await agreed(`${title} ${what}?`, effect, title, {kind}))) return false
  const done = await shell.attempt(
    () => call('POST', `${path(BASE, type)}/${verb}`, body),
    ({count: many}) => `${count(many)} ${many === 1 ? 'item was' : 'items were'} ${past}.`,
  )
  return Boolean(done)
}
