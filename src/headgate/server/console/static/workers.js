// Who works on which queue, and what is queued again and again.

import {call, get, path} from './api.js'
import {agreed} from './dialog.js'
import {badge, button, card, h, link, show, table, update} from './dom.js'
import {count, moment} from './words.js'

const PERIODIC = '/admin/periodic'

export const workers = {
  title: 'Workers',
  needs: 'admin',
  open(root, shell) {
    const [list, tasks] = [h('div'), h('div')]
    show(root, h('h1', {}, 'Workers'), card('Workers', list), card('Periodic tasks', tasks))

    async function turn(task) {
      const {name, itemType, cron, every, zone, calendar, catchUp, context, enabled} = task
      const schedule = cron === null ? {every} : {cron}
      const body = {itemType, ...schedule, zone, calendar, catchUp, context, enabled: !enabled}
      await shell.attempt(
        () => call('PUT', path(PERIODIC, name), body),
        `${name} is ${enabled ? 'paused' : 'resumed'}.`,
      )
      shell.refresh()
    }

    async function trigger({name}) {
      if (!(await agreed(`Run ${name} now?`, 'One item is queued beside its ticks.', 'Run it now', {kind: 'main'})))
        return
      await shell.attempt(() => call('POST', `${path(PERIODIC, name)}/trigger`), `${name} is queued.`)
    }

    return {
      every: 5000,
      async refresh() {
        const [{workers, unattended}, {periodic}] = await Promise.all([get('/admin/workers'), get(PERIODIC)])
        update(
          list,
          unattended.map(type => h('p', {class: 'notice'}, 'Nobody works on ', link(type, 'dispatch', type), '.')),
          table(
            'Workers',
            ['Host', 'Process', 'Version', 'Engine', 'Works on', 'Runs', 'Since', 'Last heartbeat', ''],
            workers.map(worker => [
              h('b', {}, worker.host),
              worker.pid,
              worker.version,
              `${worker.engine}: ${worker.roles.join(', ')}`,
              worker.itemTypes.join(', '),
              `${count(worker.running)} of ${count(worker.concurrency)} a type`,
              moment(worker.startedAt),
              moment(worker.seenAt),
              worker.alive ? badge('alive', 'good') : badge('silent', 'wrong'),
            ]),
            'No worker runs.',
          ),
        )
        update(
          tasks,
          table(
            'Periodic tasks',
            ['Name', 'Queues', 'When', 'Missed ticks', 'Next', 'Last', '', ''],
            periodic.map(task => [
              h('b', {}, task.name),
              link(task.itemType, 'dispatch', task.itemType),
              h('code', {}, task.cron === null ? `every ${task.every}` : `${task.cron} ${task.zone}`),
              task.catchUp,
              task.nextTick ? moment(task.nextTick) : '–',
              task.lastTick ? moment(task.lastTick) : '–',
              task.enabled ? badge('on', 'good') : badge('paused', 'warn'),
              h(
                'div',
                {class: 'row'},
                button(task.enabled ? 'Pause' : 'Resume', () => turn(task), {'data-key': `${task.name} switch`}),
                button('Run now', () => trigger(task), {'data-key': `${task.name} run`}),
              ),
            ]),
            'Nothing is queued periodically.',
          ),
        )
      },
    }
  },
}
