// Other systems that programs call: what they take, what has left for them, and what changed.

import {badge, card, h, show, table, update} from './dom.js'
import {TimeChart} from './time_chart.js'
import {count, moment, rate, span} from './words.js'

const STANDING = {open: 'calls leave', paused: 'paused by an operator', breaker: 'the breaker opened'}
const CHANGED = 0.1 // share of the effective rate from which on a change is a mark

export const downstreams = {
  open(root) {
    const [list, pictures] = [h('div'), h('div')]
    const drawn = new Map() // {chart, changes, element} by name
    show(root, h('h1', {}, 'Downstreams'), card('Systems that programs call', list), pictures)
    const themes = new MutationObserver(() => {
      if (!list.isConnected) themes.disconnect()
      for (const {chart} of drawn.values()) chart.redraw()
    })
    themes.observe(document.documentElement, {attributes: true, attributeFilter: ['data-theme']})

    function picture(name) {
      const known = drawn.get(name)
      if (known) return known
      const [chart, changes] = [new TimeChart(name, 'per second'), h('div')]
      chart.element.append(changes)
      pictures.append(chart.element)
      const made = {chart, changes, element: chart.element}
      drawn.set(name, made)
      return made
    }

    async function draw({name, history}) {
      if (history.length < 2) return
      const {chart, changes} = picture(name)
      const marks = marksOf(history)
      const times = history.map(sample => Date.parse(sample.at) / 1000)
      const each = (n, member) => (history[n][member] - history[n - 1][member]) / Math.max(times[n] - times[n - 1], 1)
      const perSecond = member => times.map((_, n) => (n ? Math.max(each(n, member), 0) : null))
      const lines = [
        {label: 'Calls', values: perSecond('calls'), kind: 'taken'},
        {label: '429s', values: perSecond('throttled'), kind: 'wrong'},
        {label: 'Effective rate', values: history.map(sample => sample.effectiveRate), kind: 'soft', dash: [4, 4]},
      ]
      await chart.draw(times, lines, {utc: false, whole: false, marks: marks.map(mark => Date.parse(mark.at) / 1000)})
      update(
        changes,
        table(
          `Changes of ${name}`,
          ['Changed', ['What', 'text']],
          marks.map(mark => [moment(mark.at), mark.text]).reverse(),
          'No change in this time.',
        ),
      )
    }

    return {
      every: 5000,
      async refresh(read) {
        const {downstreams: all, unreachable} = await read('/admin/downstreams')
        update(
          list,
          ...unreachable.map(store =>
            h('p', {}, badge('can’t be reached', 'wrong'), ` the ${store}: its downstreams are missing`),
          ),
          table(
            'Downstreams',
            [
              'Name',
              'Rate',
              ['Effective per second', 'number'],
              'Waiting',
              'Calls',
              ['Waited per call', 'number'],
              '429s',
              'Failed',
              'Unknown',
              'State',
            ],
            all.map(each => [
              h('b', {}, each.name),
              each.rate ?? '',
              each.effectiveRate === null ? '' : rate(each.effectiveRate),
              count(each.waiting),
              count(each.calls),
              each.calls ? span((each.waitedSecs * 1000) / each.calls) : '',
              count(each.throttled),
              count(each.failed),
              count(each.unknown),
              standingOf(each),
            ]),
            ['No program has called another system through a ', h('code', {}, 'Downstream'), ' on this store.'],
          ),
        )
        await Promise.all(all.map(draw))
      },
    }
  },
}

const standingOf = ({paused, breaker, pauses}) => {
  if (paused !== null) return [badge('paused', 'wrong'), h('small', {class: 'soft'}, ` ${paused}`)]
  if (breaker !== null) return [badge('breaker open', 'wrong'), h('small', {class: 'soft'}, ` ${breaker.reason}`)]
  return Object.keys(pauses).length ? badge('waits', 'warn') : badge('open', 'good')
}

/** When its state or its effective rate changed, and how. */
function marksOf(history) {
  const marks = []
  let last = history[0]
  for (const sample of history.slice(1)) {
    const [was, is] = [last.effectiveRate, sample.effectiveRate]
    if (sample.state !== last.state) marks.push({at: sample.at, text: STANDING[sample.state]})
    if (was !== null && is !== null && Math.abs(is - was) > CHANGED * was)
      marks.push({at: sample.at, text: `${rate(was)} → ${rate(is)} per second`})
    else if (sample.state === last.state) continue
    last = sample
  }
  return marks
}
