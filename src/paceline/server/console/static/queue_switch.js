// The switch of a queue: whether its items are started.

import {call, path} from './api.js'
import {agreed} from './dialog.js'
import {button} from './dom.js'
import {BASE} from './queue.js'

/** The button that stops or starts a queue, after a question.
 *  @param {{itemType: string, enabled: boolean}} queue
 *  @param {any} shell */
export const queueSwitch = (queue, shell) =>
  button(queue.enabled ? 'Stop dispatching' : 'Start dispatching', () => turn(queue, shell), {
    kind: queue.enabled ? 'danger' : 'main',
    missing: shell.missing('operate'),
    'aria-label': `${queue.enabled ? 'Stop' : 'Start'} dispatching ${queue.itemType}`,
    'data-key': `${queue.itemType} switch`,
  })

async function turn({itemType, enabled: stop}, shell) {
  const text = stop
    ? 'Nothing of this type is started any more, on any node, from the next cycle on. What runs goes on; what waits, waits.'
    : 'Items whose time has come are started from the next cycle on, by their limits.'
  const [question, answer] = [`${stop ? 'Stop' : 'Start'} dispatching ${itemType}?`, stop ? 'Stop it' : 'Start it']
  if (!(await agreed(question, text, answer, {kind: stop ? 'danger' : 'main'}))) return
  await shell.attempt(
    () => call('PATCH', path(BASE, itemType), {enabled: !stop}),
    `${itemType} is ${stop ? 'stopped' : 'running'}.`,
  )
  shell.refresh()
}
