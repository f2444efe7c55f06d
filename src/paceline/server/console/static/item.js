// One item of a queue: where it stands, what happened to it, what it carries, and what came of it.

import {call, path} from './api.js'
import {asked} from './dialog.js'
import {badge, button, card, facts, field, h, input, link, select, show, table, update} from './dom.js'
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

  const resolve = async () => {
    const values = await asked(`Resolve ${id}?`, RESOLVING, 'Resolve', {
      kind: 'main',
      fields: [
        h(
          'div',
          {class: 'grid'},
          field('What became of it', select(OUTCOMES, {name: 'outcome'})),
          field('How you know', input({name: 'reason', maxlength: 500})),
        ),
      ],
    })
    if (values === null) return
    const {outcome, reason} = values
    const body = {ids: [id], outcome, ...(reason.trim() && {reason: reason.trim()})}
    await shell.attempt(() => call('POST', `${path(BASE, type)}/resolve`, body), `${id} is resolved.`)
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
          item.unknownSince && ['Unknown since', moment(item.unknownSince, {fractions: true})],
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
            button(VERBS[verb].title, () => act(verb, item.slotted), {
              kind: VERBS[verb].kind,
              missing: shell.missing('operate'),
              'data-key': verb,
            }),
          ),
          item.unknownSince &&
            button('Resolve', resolve, {kind: 'main', missing: shell.missing('operate'), 'data-key': 'resolve'}),
          ITEMS[type] && link(ITEMS[type].words, ...ITEMS[type].place(id)),
        ),
      ),
      item.result !== null && card('Result', json(item.result, 'Result')),
      item.attempts.length > 0 &&
        card(
          'Attempts without success',
          table(
            'Attempts',
            [['Number', 'number'], 'Began', 'Ended', 'Outcome', ['Error', 'text'], 'Worker', 'Version'],
            item.attempts.map(each => [
              count(each.number),
              each.beganAt ? moment(each.beganAt, {fractions: true}) : '',
              moment(each.endedAt, {fractions: true}),
              badge(each.outcome, 'wrong'),
              each.error ?? '',
              each.worker ?? '',
              each.codeVersion ?? '',
            ]),
          ),
          item.attempts.map(each => each.traceback && trace(shown, each)),
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
      item.context !== null && card('Context', json(item.context, 'Context')),
    )
  }
}

const OUTCOMES = [
  ['done', 'done: it was executed'],
  ['refused', 'refused: it was not, and never will be'],
  ['again', 'again: it was not executed, and runs again'],
]
const RESOLVING = 'Nobody knows whether its last attempt was executed. Say what you know. This can’t be undone.'

/** Open, if it is open already: the page is brought up to date around its reader. */
function trace(shown, {number, endedAt, traceback}) {
  const [key, title] = [`attempt-${endedAt}`, `Traceback of attempt ${number}`]
  const open = shown.querySelector(`summary[data-key="${key}"]`)?.parentElement.open
  return h(
    'details',
    {open},
    h('summary', {'data-key': key}, title),
    h('pre', {tabindex: 0, role: 'region', 'aria-label': title}, traceback),
  )
}

const json = (value, label) =>
  h('pre', {tabindex: 0, role: 'region', 'aria-label': label}, JSON.stringify(value, null, 2))
