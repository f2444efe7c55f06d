// One item of a queue: where it stands, what happened to it, and what it carries.

import {get, path} from './api.js'
import {button, card, facts, h, link, show, table, update} from './dom.js'
import {BASE, moved, status} from './queue.js'
import {count, distance, moment} from './words.js'

export function itemView(root, shell, type, id) {
  const shown = h('div')
  show(root, h('p', {}, link(`← Items of ${type}`, 'dispatch', type)), shown)

  const act = async verb => {
    await moved(shell, type, verb, {ids: [id]}, id)
    shell.refresh()
  }

  return async () => {
    const item = await get(path(`${path(BASE, type)}/items`, id))
    update(
      shown,
      card(
        id,
        facts(
          ['Status', status(item.status)],
          ['Runs at', moment(item.executeAt, {fractions: true}), item.slotted ? ' (by its slot)' : ''],
          ['Due', moment(item.dueAt), ` (${distance(item.dueAt)})`],
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
          item.status === 'DEAD_LETTER' &&
            button('Requeue', () => act('requeue'), {kind: 'main', 'data-key': 'requeue'}),
          ['DEAD_LETTER', 'READY'].includes(item.status) &&
            button('Discard', () => act('discard'), {kind: 'danger', 'data-key': 'discard'}),
          type === 'PAYMENT' && link('Show the payment', 'payments', id),
        ),
      ),
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
      item.context !== null && card('Context', h('pre', {tabindex: 0}, JSON.stringify(item.context, null, 2))),
    )
  }
}
