// What is queued again and again: when it ticks next, paused and resumed, run now, made and deleted.

import {call, get, path} from './api.js'
import {agreed} from './dialog.js'
import {badge, button, card, field, form, h, input, link, select, show, submit, table, update} from './dom.js'
import {standing} from './standing.js'
import {moment} from './words.js'

const BASE = '/admin/periodic'

const when = task => (task.cron === null ? `every ${task.every}` : `${task.cron} ${task.zone}`)

export const periodic = {
  open(root, shell) {
    const list = h('div')
    const name = input({name: 'name', required: true, maxlength: 100, placeholder: 'nightly-report'})
    const type = input({name: 'itemType', required: true, maxlength: 64, placeholder: 'REPORT', list: 'item-types'})
    const cron = input({name: 'cron', maxlength: 255, placeholder: '0 16 * * MON-FRI'})
    const every = input({name: 'every', maxlength: 40, placeholder: 'PT15M'})
    const zone = input({name: 'zone', maxlength: 64, placeholder: 'Europe/Berlin'})
    const catchUp = select(['skip', 'last', 'all'], {name: 'catchUp', value: 'skip'})
    const types = h('datalist', {id: 'item-types'})
    show(
      root,
      h('h1', {}, 'Periodic'),
      types,
      card('Periodic tasks', list),
      card(
        'New periodic task',
        form(
          make,
          h(
            'div',
            {class: 'grid'},
            field('Task name', name),
            field('Item type', type, 'what it queues'),
            field('Cron', cron, 'or Every, not both'),
            field('Every', every, 'a duration'),
            field('Zone', zone, 'empty: UTC'),
            field('Missed ticks', catchUp),
          ),
          submit('Create it', shell.missing('admin')),
        ),
      ),
    )

    async function make(values) {
      const looked = await shell.attempt(async () => ({task: await standing(path(BASE, values.name))}))
      if (!looked || (looked.task && !(await replaces(looked.task)))) return
      const given = Object.entries(values).filter(([key, value]) => key !== 'name' && String(value).trim())
      const done = await shell.attempt(
        () => call('PUT', path(BASE, values.name), Object.fromEntries(given)),
        `${values.name} is in force.`,
      )
      if (done) for (const control of [name, cron, every]) control.value = ''
      shell.refresh()
    }

    const replaces = task =>
      agreed(
        `Replace ${task.name}?`,
        `There is one of this name: it queues ${task.itemType}, ${when(task)}. All of it is replaced, its context and its calendar too.`,
        'Replace it',
      )

    async function turn({name: task, enabled}) {
      await shell.attempt(() => switched(task, !enabled), `${task} is ${enabled ? 'paused' : 'resumed'}.`)
      shell.refresh()
    }

    async function trigger({name: task}) {
      if (!(await agreed(`Run ${task} now?`, 'One item is queued beside its ticks.', 'Run it now', {kind: 'main'})))
        return
      await shell.attempt(() => call('POST', `${path(BASE, task)}/trigger`), `${task} is queued.`)
    }

    async function remove({name: task}) {
      if (!(await agreed(`Delete ${task}?`, 'It ticks no more. What it queued stays queued.', 'Delete it'))) return
      await shell.attempt(() => call('DELETE', path(BASE, task)), `${task} is deleted.`)
      shell.refresh()
    }

    const actions = task =>
      h(
        'div',
        {class: 'row'},
        button(task.enabled ? 'Pause' : 'Resume', () => turn(task), {
          missing: shell.missing('admin'),
          'data-key': `${task.name} switch`,
          'aria-label': `${task.enabled ? 'Pause' : 'Resume'} ${task.name}`,
        }),
        button('Run now', () => trigger(task), {
          missing: shell.missing('operate'),
          'data-key': `${task.name} run`,
          'aria-label': `Run ${task.name} now`,
        }),
        button('Delete', () => remove(task), {
          kind: 'danger',
          missing: shell.missing('admin'),
          'data-key': `${task.name} delete`,
          'aria-label': `Delete ${task.name}`,
        }),
      )

    return {
      every: 5000,
      async refresh(read) {
        const [{periodic: tasks}, {itemTypes}] = await Promise.all([read(BASE), read('/admin/dispatch')])
        update(
          types,
          itemTypes.map(each => h('option', {value: each.itemType})),
        )
        update(
          list,
          table(
            'Periodic tasks',
            ['Name', 'Queues', 'When', 'Missed ticks', 'Next', 'Last', 'State', ''],
            tasks.map(task => [
              h('b', {}, task.name),
              link(task.itemType, 'dispatch', task.itemType, {prefix: `${task.name}@`}),
              h('code', {}, when(task)),
              task.catchUp,
              task.nextTick ? moment(task.nextTick) : '–',
              task.lastTick ? moment(task.lastTick) : '–',
              task.enabled ? badge('on', 'good') : badge('paused', 'warn'),
              actions(task),
            ]),
            ['Nothing is queued periodically. Make one below, or with ', h('code', {}, '@tasks.periodic'), '.'],
          ),
        )
      },
    }
  },
}

/** Pauses or resumes a task. PUT replaces all of it, so it is read anew: somebody may have changed it meanwhile. */
async function switched(name, enabled) {
  const {itemType, cron, every, zone, calendar, catchUp, context} = await get(path(BASE, name))
  const schedule = cron === null ? {every} : {cron}
  return call('PUT', path(BASE, name), {itemType, ...schedule, zone, calendar, catchUp, context, enabled})
}
