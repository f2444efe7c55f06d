// After a limit was changed: what a re-plan would move, and moving it.

import {call, query} from './api.js'
import {CONFIG_NAMES} from './config_names.js'
import {agreed} from './dialog.js'
import {button, card, facts, field, form, h, input, link, select, show, update} from './dom.js'
import {lookUp} from './lookup.js'
import {count, instant, moment, span, spanOf, ZONE} from './words.js'

export const replan = {
  open(root, shell, [name = '']) {
    const config = input({name: 'configName', value: name, required: true, maxlength: 128, list: CONFIG_NAMES})
    const direction = select(
      [
        ['earlier', 'earlier'],
        ['spread', 'later'],
      ],
      {name: 'direction', value: 'earlier'},
    )
    const [from, to] = ['from', 'to'].map(each => input({name: each, type: 'datetime-local', step: 1}))
    const notice = input({name: 'notice', maxlength: 40, placeholder: 'PT1M'})
    const [standing, shown] = [h('div'), h('div', {role: 'status'})]
    let edits = 0 // how often the form was changed: what was previewed before then is no longer what it says
    const filled = form(
      () => preview(),
      h(
        'div',
        {class: 'grid'},
        field('Config', config),
        field('Direction', direction, 'earlier: after a limit was raised; later: what is over a lowered one'),
        field('Slots from', from, ZONE),
        field('Slots before', to, ZONE),
        field('Notice', notice, 'a duration; empty: one minute'),
      ),
      h('button', {class: 'main'}, 'Preview'),
    )
    filled.addEventListener('input', () => {
      edits += 1
      show(shown)
    })
    show(
      root,
      h('h1', {}, 'Replan'),
      card(
        'Move booked slots',
        h(
          'p',
          {class: 'soft'},
          'Booked slots keep their times when a limit changes. A re-plan moves them, in order; their work moves with them. What has begun, or runs within the notice, stays.',
        ),
        standing,
        filled,
        shown,
      ),
    )

    const wanted = () => {
      const given = {
        configName: config.value.trim(),
        direction: direction.value,
        from: instant(from.value),
        to: instant(to.value),
        notice: notice.value.trim() || undefined,
      }
      return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
    }

    const asked = (given, dryRun) => call('POST', '/api/v1/slots/replan', {...given, dryRun}, {changes: !dryRun})

    const outcome = (plan, verb) =>
      facts(
        ['Examined', count(plan.examined)],
        [verb, h('b', {}, count(plan.moved))],
        plan.moved > 0 && [
          `${plan.savedMs < 0 ? 'Later' : 'Earlier'}, on average, by`,
          span(Math.abs(plan.savedMs) / plan.moved),
        ],
        plan.lastBefore && ['The last one, before', moment(plan.lastBefore)],
        plan.lastAfter && ['The last one, after', moment(plan.lastAfter)],
      )

    async function preview() {
      const [given, begun] = [wanted(), edits]
      const plan = await shell.attempt(() => asked(given, true))
      if (!plan || edits !== begun) return
      show(
        shown,
        outcome(plan, 'Would move'),
        plan.moved
          ? button('Move them', () => move(given), {kind: 'main'})
          : h('p', {}, 'Nothing to move: all are where they belong.'),
      )
    }

    async function move(given) {
      const way = given.direction === 'spread' ? 'later' : 'earlier'
      const effect = 'Bookings go on meanwhile. A call that breaks off can be repeated.'
      const question = `Move booked slots of ${given.configName} ${way}?`
      if (!(await agreed(question, effect, 'Move them', {kind: 'main'}))) return
      const done = await shell.attempt(
        () => asked(given, false),
        plan => `${count(plan.moved)} slots were moved.`,
      )
      if (done) show(shown, outcome(done, 'Moved'))
    }

    return {
      every: 5000,
      async refresh(read) {
        const active = await lookUp(read, standing, query('/admin/rate-limit/config', {name}))
        if (active) update(standing, standsAt(active))
      },
    }
  },
}

const standsAt = active =>
  h(
    'p',
    {},
    link(active.configName, 'configs', active.configName),
    ` takes ${count(active.maxPerWindow)} in ${spanOf(active.windowSize)}, since `,
    moment(active.createdAt),
    '.',
  )
