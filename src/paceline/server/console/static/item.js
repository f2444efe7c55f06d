// One item of a queue: where it stands, what happened to it, what it carries, and what came of it.

import {path} from './api.js'
import {button, card, facts, h, link, show, table, update} from './dom.js'
import {lookUp} from './lookup.js'
import {ITEMS} from './places.js'
import {BASE, changed, progressBar, status, VERBS, verbsFor} from './queue.js'
import {count, distance, moment} from './words.js'

export function itemView(root, shell, type, id) {
  const shown = h('div')
  show(root, h('p', {}, link(`← Items of ${type}`, 'dispatch', type)), shown)

  const act = async (verb, fixed) => {
    await changed(shell, type, verb, {ids: [id]}, id, {fixed})
    shell.refresh()
  }

  return async read => {
    const item = await lookUp(read, shown, path(`${path(BASE, type)}/items`, id))
    if (!item) return
    update(
      shown,
      card(
        id,
        facts(
          ['Status', status(item.status)],
          item.progress && ['Progress', progressBar(item)],
          ['Runs at', moment(item.executeAt, {fractions: true}), item.slotted ? ' (by its slot)' : ''],
          ['Due', moment(item.dueAt), ` (${distance(item.dueAt)})`],
          ['Lane', link(item.lane, 'dispatch', type, {lane: item.lane})],
          ['Priority', `${item.priority} (0 first, 9 last)`],
          ['Attempt', count(item.attempt)],
          ['Retries', count(item.retryCount)],
          item.lastError && ['Last error', h('code', {}, item.lastError)],
          item.execWorkflowId && ['Execution', h('code', {}, item.execWorkflowId)],
          item.batchId && ['Batch', h('code', {}, item.batchId)],
          item.traceparent && ['Trace', h('code', {}, item.traceparent)],
          ['Queued', moment(item.createdAt)],
          ['Changed', moment(item.updatedAt)],
        ),
        h(
          'div',
          {class: 'row'},
          verbsFor([item.status]).map(verb =>
            button(VERBS[verb].title, () => act(verb, item.slotted), {kind: VERBS[verb].kind, 'data-key': verb}),
          ),
          ITEMS[type] && link(ITEMS[type].words, ...ITEMS[type].place(id)),
        ),
      ),
      item.result !== null && card('Result', json(item.result, 'Result')),
      card(
        'What happened',
        table(
          'Audit',
          ['At', 'Action', 'From', 'To', ['Detail', 'text']],
          item.audit.map(entry => [
            moment(entry.createdAt, {fractions: true}),
            entry.action,
            entry.statusBefore ? status(entry.statusBefore) : '',
            entry.statusAfter ? status(entry.statusAfter) : '',
            entry.detail ?? '',
          ]),
        ),
      ),
      item.context !== null && card('Context', json(item.context, 'Context')),
    )
  }
}

const json = (value, label) =>
  h('pre', {tabindex: 0, role: 'region', 'aria-label': label}, JSON.stringify(value, null, 2))
