// One event's slot: when it runs, why then, and cancelling it.

import {call, get, path} from './api.js'
import {agreed} from './dialog.js'
import {button, card, facts, field, form, h, input, show} from './dom.js'
import {count, distance, moment, span} from './words.js'

const SHOWN = 12 // windows that were passed over, one by one

/** A card, and how an event is looked up in it. */
export function slotDetail(shell, wanted, event, query) {
  const found = h('div')
  const id = input({name: 'event', required: true, maxlength: 255, value: event, placeholder: 'order-123'})

  async function cancel(slot) {
    const effect = `${slot.eventId} loses its time; the room is free for the next caller at once.`
    if (!(await agreed('Cancel this slot?', effect, 'Cancel the slot'))) return
    const done = await shell.attempt(
      () => call('DELETE', path('/api/v1/slots', slot.eventId)),
      `The slot of ${slot.eventId} is cancelled.`,
    )
    if (done) show(found, h('p', {class: 'notice'}, `The slot of ${slot.eventId} is cancelled.`))
    shell.refresh()
  }

  return {
    element: card(
      'One event',
      form(
        values => shell.go('slots', wanted, values.event, query),
        h('div', {class: 'row'}, field('Event id', id), h('button', {class: 'main'}, 'Look up')),
      ),
      found,
    ),
    async lookUp() {
      const known = await shell.attempt(() =>
        Promise.all([get(path('/api/v1/slots', event)), get(`${path('/api/v1/slots', event)}/explain`)]),
      )
      show(found)
      if (!known) return
      const [slot, why] = known
      show(
        found,
        facts(
          ['Event', h('code', {}, slot.eventId)],
          ['Runs at', moment(slot.scheduledTime, {fractions: true}), ` (${distance(slot.scheduledTime)})`],
          ['Asked for', moment(why.requestedTime, {fractions: true})],
          ['Booked', moment(why.bookedAt, {fractions: true})],
          why.movedAt && ['Moved by a re-plan', moment(why.movedAt, {fractions: true})],
          ['Delay', span(slot.delayMs)],
          ['Window', moment(slot.windowStart)],
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
          reasons(why).map(reason => h('li', {}, reason)),
        ),
        Date.parse(slot.scheduledTime) > Date.now() &&
          button('Cancel this slot', () => cancel(slot), {kind: 'danger', missing: shell.missing('assign')}),
      )
    },
  }
}

const REASONS = {
  full: 'full',
  proportional: 'already begun, and the share of what was left of it taken',
  joint: 'not free for all of its configs at once',
  order: 'passed over by the re-plan, which keeps the order of slots and its notice',
}

function passed({windowStart, reason, rule, windows, configName}) {
  const many = windows > 1 ? `${count(windows)} windows from ` : 'The window of '
  const why = reason === 'closed' ? `closed by the calendar${rule ? ` (${rule})` : ''}` : REASONS[reason]
  return [many, moment(windowStart), ` of ${configName} ${windows > 1 ? 'were' : 'was'} ${why}.`]
}

function removed({configName, configVersion, configExists, template}) {
  const gone = configExists
    ? `Version ${configVersion} of ${configName} no longer exists`
    : `The config ${configName} no longer exists: it was idle`
  return template
    ? `${gone}. Version ${configVersion} of ${template} has its policy.`
    : `${gone}. Which of its windows were passed over is not known.`
}

function reasons(why) {
  const unknown = (why.removed ?? []).some(version => !version.template)
  const late = Date.parse(why.effectiveTime) > Date.parse(why.requestedTime)
  const rest = why.steps.slice(SHOWN).reduce((sum, step) => sum + step.windows, 0)
  return [
    [
      'It asked for ',
      moment(why.requestedTime, {fractions: true}),
      ` under ${why.configName}, version ${why.configVersion}.`,
      late && [' That had passed when it was booked: it was looked for from ', moment(why.effectiveTime), ' on.'],
    ],
    ...(why.removed ?? []).map(removed),
    ...why.steps.slice(0, SHOWN).map(passed),
    rest > 0 && `${count(rest)} more windows were passed over.`,
    [
      why.steps.length || unknown
        ? 'The first window with room is that of '
        : 'The window it asked for had room: that of ',
      moment(why.windowStart),
      '. Slots are spread over what is left of it, so that no burst builds up.',
    ],
    why.today.windowStart
      ? [
          'The same request would get the window of ',
          moment(why.today.windowStart),
          ` today, under version ${why.activeVersion}.`,
        ]
      : 'The same request would be refused today: nothing is free before the horizon.',
  ].filter(Boolean)
}
