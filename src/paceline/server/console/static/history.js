// What happened over time in the whole installation, and what is planned.

import {query} from './api.js'
import {heatMap} from './charts.js'
import {button, h, select, show, update} from './dom.js'
import {NUMBERS} from './places.js'
import {TimeChart} from './time_chart.js'
import {ZONE} from './words.js'

const RANGES = {PT15M: '15 minutes', PT6H: '6 hours', P1D: '24 hours', P7D: '7 days'}
const ALL = ''

/** The sums of lines, value by value. */
const sums = (lines, length) =>
  lines.reduce((total, line) => total.map((value, n) => value + (line[n] ?? 0)), Array(length).fill(0))

export const charts = {
  open(root, shell, [range = 'PT15M', zone = 'local', config = ALL, plan = ALL, queue = ALL]) {
    const state = {range: Object.hasOwn(RANGES, range) ? range : 'PT15M', utc: zone === 'utc', config, plan, queue}
    const unit = () => (state.range === 'PT15M' || state.range === 'PT6H' ? 'per minute' : 'per 10 minutes')
    const choices = ['config', 'plan', 'queue'].map(name => h('span', {'data-choice': name}))
    const drawn = {
      slots: new TimeChart('Slots', '', choices[0]),
      limits: new TimeChart('Limit decisions', '', choices[1]),
      executions: new TimeChart('Executions', '', choices[2]),
      durations: new TimeChart('Time that executions take', 's'),
      backlog: new TimeChart('Backlog, and what is planned', 'items'),
      calls: new TimeChart(NUMBERS.downstreamCalls, 'per second'),
    }
    const [bar, heat] = [h('div', {class: 'row chart-bar'}), h('section', {class: 'card'})]
    const all = Object.values(drawn)
    let [data, whole] = [null, true]
    // Later: a button that was pressed is given back first.
    drawn.slots.onzoom = () => setTimeout(toolbar)

    show(
      root,
      h('h1', {}, 'Charts'),
      bar,
      Object.values(drawn).map(chart => chart.element),
      heat,
    )
    const themes = new MutationObserver(() => {
      if (!bar.isConnected) themes.disconnect()
      for (const chart of all) chart.redraw()
    })
    themes.observe(document.documentElement, {attributes: true, attributeFilter: ['data-theme']})

    /** Keeps what is chosen in the address, without opening the page anew. */
    function choose(changes) {
      whole = 'range' in changes
      Object.assign(state, changes)
      const parts = ['charts', state.range, state.utc ? 'utc' : 'local', state.config, state.plan, state.queue]
      history.replaceState(null, '', `#/${parts.map(encodeURIComponent).join('/')}`)
      return shell.refresh()
    }

    function toolbar() {
      update(
        bar,
        h(
          'div',
          {class: 'row', role: 'group', 'aria-label': 'Time range'},
          Object.entries(RANGES).map(([value, text]) =>
            button(text, () => choose({range: value}), {
              kind: 'quiet',
              'aria-pressed': String(value === state.range),
              'data-key': value,
            }),
          ),
        ),
        h(
          'div',
          {class: 'row', role: 'group', 'aria-label': 'Zoom'},
          button('Zoom in', () => magnify(0.5), {kind: 'quiet', repeats: true, 'data-key': 'in'}),
          button('Whole range', () => magnify(null), {
            kind: 'quiet',
            'data-key': 'out',
            disabled: !drawn.slots.zoomed,
          }),
        ),
        h(
          'div',
          {class: 'row'},
          button(state.utc ? 'Times in UTC' : `Times in ${ZONE}`, () => choose({utc: !state.utc}), {
            kind: 'quiet',
            'aria-label': state.utc ? 'Times in UTC; show local times' : `Times in ${ZONE}; show UTC`,
            'data-key': 'zone',
          }),
        ),
      )
    }

    /** Shows the newest part of what is in sight, or all of it. */
    function magnify(share) {
      const [from, to] = drawn.slots.range
      for (const chart of all) chart.zoom(share ? [to - (to - from) * share, to] : undefined)
    }

    function selection(n, name, label, values, all) {
      const options = [...(all ? [[ALL, all]] : []), ...values.map(value => [value, value])]
      if (!options.length) return show(choices[n])
      const onchange = event => choose({[name]: event.target.value})
      update(choices[n], select(options, {value: state[name], 'aria-label': label, 'data-key': name, onchange}))
    }

    function draw() {
      const {times, stepSeconds, configs, plans, queues, downstream, configNames, planNames, itemTypes} = data
      if (!itemTypes.includes(state.queue)) state.queue = busiest(queues) ?? itemTypes[0] ?? ALL
      const chosen = queues.find(each => each.itemType === state.queue)
      selection(0, 'config', 'Config', configNames, 'All configs')
      selection(1, 'plan', 'Plan', planNames, 'All plans')
      selection(2, 'queue', 'Item type', itemTypes, null)
      const some = (lines, name, key) => lines.filter(each => state[name] === ALL || each[key] === state[name])
      const total = (lines, member) =>
        sums(
          lines.map(each => each[member]),
          times.length,
        )
      const [booked, decided] = [some(configs, 'config', 'configName'), some(plans, 'plan', 'plan')]
      const none = times.map(() => null)
      const perSecond = line => line.map(value => value / stepSeconds)
      // The period that goes on is not counted to its end: its line would fall off a cliff.
      const over = line => [...line.slice(0, -1), null]
      for (const name of ['slots', 'limits', 'executions']) drawn[name].unit = unit()
      const lines = {
        slots: [
          {label: 'Booked', values: over(total(booked, 'booked')), kind: 'taken'},
          {label: 'Refused', values: over(total(booked, 'refused')), kind: 'wrong'},
        ],
        limits: [
          {label: 'Allowed', values: over(total(decided, 'allowed')), kind: 'taken'},
          {label: 'Denied', values: over(total(decided, 'denied')), kind: 'wrong'},
        ],
        executions: [
          {label: 'Completed', values: over(chosen?.completed ?? none), kind: 'taken'},
          {label: 'Failed', values: over(chosen?.failed ?? none), kind: 'wrong'},
          {label: 'Dead letters', values: over(chosen?.deadLettered ?? none), kind: 'full'},
        ],
        durations: [
          {label: 'Half within', values: chosen?.p50 ?? none, kind: 'taken'},
          {label: '95 % within', values: chosen?.p95 ?? none, kind: 'busy'},
          {label: '99 % within', values: chosen?.p99 ?? none, kind: 'full'},
        ],
        calls: [
          {label: 'Calls', values: over(perSecond(downstream.calls)), kind: 'taken'},
          {label: 'Failed', values: over(perSecond(downstream.failed)), kind: 'wrong'},
          {label: 'Limit', values: times.map(() => downstream.limitPerSecond), kind: 'soft', dash: [4, 4]},
        ],
      }
      const options = {utc: state.utc, whole}
      whole = false
      return Promise.all([
        ...Object.entries(lines).map(([name, shown]) => drawn[name].draw(times, shown, options)),
        drawn.backlog.draw(...withAhead(times, chosen), options),
      ])
    }

    async function drawHeat(read) {
      const shown = await read(query('/api/v1/console/heat-map', {configName: state.config, days: 7}))
      update(heat, h('h2', {}, `The next 7 days of ${shown.configName}`), heatMap(shown, state.utc))
    }

    return {
      every: 15_000,
      async refresh(read) {
        const [known] = await Promise.all([
          read(query('/api/v1/console/history', {range: state.range})),
          drawHeat(read),
        ])
        data = known
        toolbar()
        await draw()
      },
    }
  },
}

/** The item type that executed most in these times. */
function busiest(queues) {
  const executed = queues.map(each => [sum(each.completed) + sum(each.failed), each.itemType])
  return executed.filter(([many]) => many).sort(([one], [other]) => other - one)[0]?.[1]
}

const sum = values => values.reduce((total, value) => total + (value ?? 0), 0)

/** The backlog so far and, from now on, what is planned: one line each over the same times. */
function withAhead(times, queue) {
  const ahead = queue?.ahead ?? []
  const later = ahead.filter(({at}) => at > times.at(-1))
  const last = queue?.backlog.findLast(value => value !== null) ?? null
  const planned = [...times.slice(0, -1).map(() => null), ahead.length ? last : null, ...later.map(({items}) => items)]
  return [
    [...times, ...later.map(({at}) => at)],
    [
      {
        label: 'Waiting',
        values: [...(queue?.backlog ?? times.map(() => null)), ...later.map(() => null)],
        kind: 'taken',
      },
      {label: 'Planned', values: planned, kind: 'busy', dash: [5, 4]},
    ],
  ]
}
