// When may it run? The next windows, a forecast, and one event's slot with the reason for its time.

import {call, get, path, query} from './api.js'
import {windowBars} from './charts.js'
import {agreed} from './dialog.js'
import {badge, button, card, facts, field, form, h, input, show, table, update} from './dom.js'
import {slotList} from './slot_list.js'
import {count, distance, durationMs, instant, moment, span, spanOf, ZONE} from './words.js'

export const slots = {
  title: 'Slots',
  needs: 'read',
  open(root, shell, [wanted = '', event = ''], filter) {
    const names = h('datalist', {id: 'config-names'})
    const list = slotList(shell, filter)
    const config = input({
      name: 'config',
      value: wanted,
      placeholder: 'the default config',
      list: 'config-names',
      maxlength: 128,
    })
    const events = input({name: 'events', type: 'number', min: 1, max: 100_000_000, value: 1, required: true})
    const time = input({name: 'at', type: 'datetime-local', step: 1})
    const [summary, drawing, detail, found] = [h('p', {role: 'status'}), h('div'), h('div'), h('div')]
    const id = input({name: 'event', required: true, maxlength: 255, value: event, placeholder: 'pay-123'})
    show(
      root,
      names,
      h('h1', {}, 'Slots'),
      card(
        'Forecast',
        form(
          () => shell.refresh(),
          h(
            'div',
            {class: 'row'},
            field('Config', config),
            field('Events', events, 'that want the same time'),
            field('Time', time, `${ZONE}; empty: now`),
            h('button', {class: 'main'}, 'Forecast'),
          ),
        ),
        summary,
        drawing,
        detail,
      ),
      card(
        'One event',
        form(
          values => lookUp(values.event),
          h('div', {class: 'row'}, field('Event id', id), h('button', {class: 'main'}, 'Look up')),
        ),
        found,
      ),
      list.element,
    )

    async function lookUp(eventId) {
      const slot = await shell.attempt(() => get(path('/api/v1/slots', eventId)))
      show(found)
      if (!slot) return
      const policy = await policyOf(slot, shell)
      const requested = new Date(Date.parse(slot.scheduledTime) - slot.delayMs).toISOString()
      show(
        found,
        facts(
          ['Event', h('code', {}, slot.eventId)],
          ['Runs at', moment(slot.scheduledTime, {fractions: true}), ` (${distance(slot.scheduledTime)})`],
          ['Asked for', moment(requested, {fractions: true})],
          ['Delay', span(slot.delayMs)],
          ['Window', moment(slot.windowStart), policy ? ` of ${spanOf(policy.windowSize)}` : ''],
          ['Config', `${slot.configName}, version ${slot.configVersion}`],
          ...(slot.windows ?? [])
            .slice(1)
            .map(also => [
              'Also in',
              moment(also.windowStart),
              ` of ${also.configName}, version ${also.configVersion}`,
            ]),
        ),
        h('h3', {}, 'Why this time'),
        h(
          'ol',
          {},
          reasons(slot, requested, policy).map(reason => h('li', {}, reason)),
        ),
        Date.parse(slot.scheduledTime) > Date.now() &&
          button('Cancel this slot', () => cancel(slot), {kind: 'danger', missing: shell.missing('assign')}),
      )
    }

    async function cancel(slot) {
      if (
        !(await agreed(
          'Cancel this slot?',
          `${slot.eventId} loses its time; the room is free for the next caller at once.`,
          'Cancel the slot',
        ))
      )
        return
      const done = await shell.attempt(
        () => call('DELETE', path('/api/v1/slots', slot.eventId)),
        `The slot of ${slot.eventId} is cancelled.`,
      )
      if (done) show(found, h('p', {class: 'notice'}, `The slot of ${slot.eventId} is cancelled.`))
      shell.refresh()
    }

    if (shell.may('admin')) {
      shell.attempt(async () => {
        const {configs} = await get('/admin/rate-limit/configs')
        update(
          names,
          configs.map(each => h('option', {value: each.configName})),
        )
      })
    }
    if (event) lookUp(event)
    return {
      every: 3000,
      async refresh() {
        const asked = {configName: config.value.trim(), events: events.value || 1, at: instant(time.value)}
        const [forecast] = await Promise.all([get(query('/api/v1/forecast', asked)), list.refresh()])
        update(summary, ...said(forecast))
        update(drawing, windowBars(forecast.nextWindows, `How full the next windows of ${forecast.configName} are`))
        const open = detail.querySelector('details')?.open
        update(
          detail,
          h(
            'details',
            {open},
            h('summary', {'data-key': 'numbers'}, 'The numbers'),
            table(
              'Next windows',
              ['Window', ['Booked', 'number'], ['Would be added', 'number'], ['Limit', 'number']],
              forecast.nextWindows.map(each => [
                moment(each.start),
                count(each.taken),
                count(each.added),
                count(each.limit),
              ]),
            ),
            table(
              'Peaks',
              ['Spread', ['Most in a second', 'number'], ['Most in 100 ms', 'number']],
              forecast.peaks.map((each, n) => [
                [each.spread, ' ', n === 0 && badge('this config')],
                count(each.perSecond),
                count(each.per100Ms),
              ]),
            ),
          ),
        )
      },
    }
  },
}

function said(forecast) {
  if (!forecast.drainedBy) return ['Nothing is free before the horizon: ', h('b', {}, 'all would be refused'), '.']
  const late = span(Date.parse(forecast.drainedBy) - Date.parse(forecast.requestedTime))
  return [
    h('b', {}, `${count(forecast.placed)} of ${count(forecast.events)}`),
    ` would run in ${count(forecast.windowCount)} `,
    forecast.windowCount === 1 ? 'window' : 'windows',
    ' of ',
    h('b', {}, forecast.configName),
    ', the last by ',
    moment(forecast.drainedBy),
    ` (${late} after the wanted time).`,
    forecast.refused > 0 &&
      h('b', {class: 'wrong'}, ` ${count(forecast.refused)} lie beyond the horizon and would be refused.`),
  ]
}

/** The version a slot was booked under; only administrators may see versions. */
async function policyOf(slot, shell) {
  if (!shell.may('admin')) return null
  const history = await shell.attempt(() => get(query('/admin/rate-limit/config/history', {name: slot.configName})))
  return history?.versions.find(each => each.version === slot.configVersion) ?? null
}

function reasons(slot, requested, policy) {
  const limit = policy ? `, which allowed ${count(policy.maxPerWindow)} every ${spanOf(policy.windowSize)}` : ''
  /** @type {(string | (string | Node)[])[]} */
  const told = [
    [
      'It asked for ',
      moment(requested, {fractions: true}),
      ` under ${slot.configName}, version ${slot.configVersion}${limit}.`,
    ],
  ]
  const size = policy ? durationMs(policy.windowSize) : NaN
  const start = Date.parse(slot.windowStart)
  const asked = Date.parse(requested)
  if (asked >= start) {
    told.push('The window it asked for had room, so it stayed in it.')
  } else {
    const passed = Number.isNaN(size)
      ? 'Every window'
      : `Each of the ${count(Math.max(1, Math.ceil((start - asked) / size)))} windows`
    told.push([
      `${passed} from there up to `,
      moment(slot.windowStart),
      ' was full, closed or already over when it was booked: the first with room is taken, always.',
    ])
  }
  const into = Date.parse(slot.scheduledTime) - Math.max(start, asked)
  const how = {even: ' evenly, by the golden ratio', jitter: ' at random'}[policy?.spread] ?? ''
  told.push(
    `It lies ${span(into)} into what was left of the window: slots are spread${how}, so that no burst builds up.`,
  )
  return told
}
