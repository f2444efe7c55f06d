// When may it run? The next windows, a forecast, one event's slot, and all slots.

import {query} from './api.js'
import {windowBars} from './charts.js'
import {CONFIG_NAMES} from './config_names.js'
import {badge, card, field, form, h, input, show, table, update} from './dom.js'
import {slotDetail} from './slot_detail.js'
import {slotList} from './slot_list.js'
import {count, instant, localTime, moment, span, ZONE} from './words.js'

export const slots = {
  open(root, shell, [wanted = '', event = ''], filter) {
    const list = slotList(shell, ['slots', wanted, event], filter)
    const one = slotDetail(shell, wanted, event, filter)
    const config = input({
      name: 'config',
      value: wanted,
      placeholder: 'the default config',
      list: CONFIG_NAMES,
      maxlength: 128,
    })
    const events = input({
      name: 'events',
      type: 'number',
      min: 1,
      max: 100_000_000,
      value: filter.events ?? 1,
      required: true,
    })
    const time = input({name: 'at', type: 'datetime-local', step: 1, value: localTime(filter.at)})
    const [summary, drawing, detail] = [h('p', {role: 'status'}), h('div'), h('div')]
    show(
      root,
      h('h1', {}, 'Slots'),
      card(
        'Forecast',
        form(
          () =>
            shell.go('slots', config.value.trim(), event, {...filter, events: events.value, at: instant(time.value)}),
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
      one.element,
      list.element,
    )

    if (event) one.lookUp()
    return {
      every: 3000,
      async refresh(read) {
        const asked = {configName: wanted, events: filter.events ?? 1, at: filter.at}
        const [forecast] = await Promise.all([read(query('/api/v1/forecast', asked)), list.refresh(read)])
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
    ` (${late} after the requested time).`,
    forecast.refused > 0 &&
      h('b', {class: 'wrong'}, ` ${count(forecast.refused)} lie beyond the horizon and would be refused.`),
  ]
}
