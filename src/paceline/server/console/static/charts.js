// Small drawings. Their numbers are also there as text, for whoever can't see them.

import {h, s} from './dom.js'
import {clock, count} from './words.js'

/** The last values as a line. */
export function sparkline(values, label) {
  const most = Math.max(1e-9, ...values)
  const points = values.map((value, n) => `${(n * 120) / Math.max(1, values.length - 1)},${27 - (value / most) * 24}`)
  return s(
    'svg',
    {class: 'spark', viewBox: '0 0 120 28', role: 'img', 'aria-label': label, preserveAspectRatio: 'none'},
    values.length > 1 && [
      s('polygon', {points: `0,28 ${points.join(' ')} 120,28`, class: 'area'}),
      s('polyline', {points: points.join(' '), class: 'line', 'vector-effect': 'non-scaling-stroke'}),
    ],
  )
}

/** Windows as bars: what is booked, and what would come on top, up to the limit. */
export function windowBars(windows, label) {
  const limit = Math.max(1, ...windows.map(each => Math.max(each.limit, each.taken + each.added)))
  const wide = 720 / Math.max(1, windows.length)
  const high = value => (value / limit) * 96
  const bars = windows.map((each, n) => {
    const [x, width] = [n * wide + wide * 0.1, wide * 0.8]
    return s(
      'g',
      {},
      s(
        'title',
        {},
        `${clock(each.start)}: ${count(each.taken)} booked, ${count(each.added)} added, limit ${count(each.limit)}`,
      ),
      s('rect', {x, width, y: 4, height: 96, class: 'room'}),
      s('rect', {
        x,
        width,
        y: 100 - high(each.taken),
        height: high(each.taken),
        class: each.taken >= each.limit ? 'taken full' : 'taken',
      }),
      s('rect', {x, width, y: 100 - high(each.taken + each.added), height: high(each.added), class: 'added'}),
    )
  })
  const ends = windows.length ? [clock(windows[0].start), clock(windows.at(-1).start)] : ['', '']
  return h(
    'figure',
    {class: 'bars'},
    s('svg', {viewBox: '0 0 720 104', role: 'img', 'aria-label': label, preserveAspectRatio: 'none'}, bars),
    h(
      'figcaption',
      {},
      h('span', {}, ends[0]),
      h(
        'span',
        {class: 'legend'},
        h('i', {class: 'taken'}),
        'booked ',
        h('i', {class: 'full'}),
        'full ',
        h('i', {class: 'added'}),
        'would be added',
      ),
      h('span', {}, ends[1]),
    ),
  )
}

/** Columns of stacked values; `series` are [name, class, values]. */
export function stacked(series, labels, label) {
  const length = series[0][2].length
  const totals = Array.from({length}, (_, n) => series.reduce((sum, [, , values]) => sum + values[n], 0))
  const most = Math.max(1, ...totals)
  const wide = 720 / Math.max(1, length)
  const columns = totals.map((_, n) => {
    let y = 100
    return s(
      'g',
      {},
      s('title', {}, `${labels[n]}: ${series.map(([name, , values]) => `${count(values[n])} ${name}`).join(', ')}`),
      s('rect', {x: n * wide, width: wide, y: 0, height: 100, class: 'touch'}),
      series.map(([, kind, values]) => {
        const height = (values[n] / most) * 96
        y -= height
        return s('rect', {x: n * wide + wide * 0.1, width: wide * 0.8, y, height, class: kind})
      }),
    )
  })
  return h(
    'figure',
    {class: 'bars'},
    s('svg', {viewBox: '0 0 720 104', role: 'img', 'aria-label': label, preserveAspectRatio: 'none'}, columns),
    h(
      'figcaption',
      {},
      h('span', {}, labels[0] ?? ''),
      h(
        'span',
        {class: 'legend'},
        series.map(([name, kind]) => [h('i', {class: kind}), `${name} `]),
      ),
      h('span', {}, labels.at(-1) ?? ''),
    ),
  )
}

/** How much of something is used, with the numbers beside it. */
export const gauge = (value, limit, label) =>
  h(
    'span',
    {class: 'gauge'},
    h('meter', {min: 0, max: limit || 1, value, 'aria-label': label}),
    h('span', {}, `${count(value)} / ${count(limit)}`),
  )

/** @type {Intl.DateTimeFormatOptions} */
const DAY = {weekday: 'short', day: '2-digit', month: 'short'}

/** Hours as cells, days as rows: how much of what may be booked is. The numbers stand in each cell's name. */
export function heatMap({start, taken, capacity}, utc) {
  const zone = utc ? 'UTC' : undefined
  const [day, hour] = [
    new Intl.DateTimeFormat('en', {...DAY, timeZone: zone}),
    new Intl.DateTimeFormat('en', {hour: '2-digit', hour12: false, timeZone: zone}),
  ]
  const rows = new Map()
  taken.forEach((booked, n) => {
    const at = new Date(Date.parse(start) + n * 3_600_000)
    const name = day.format(at)
    if (!rows.has(name)) rows.set(name, Array(24).fill(null))
    rows.get(name)[Number(hour.format(at)) % 24] = {booked, room: capacity[n]}
  })
  return h(
    'div',
    {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'How full the next days are, by the hour'},
    h(
      'table',
      {class: 'heat'},
      h('caption', {class: 'unseen'}, 'How full each hour is, in percent'),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h('th', {scope: 'col'}, utc ? 'Day (UTC)' : 'Day'),
          Array.from({length: 24}, (_, n) => h('th', {scope: 'col'}, String(n).padStart(2, '0'))),
        ),
      ),
      h(
        'tbody',
        {},
        [...rows].map(([name, cells]) => h('tr', {}, h('th', {scope: 'row'}, name), cells.map(heatCell))),
      ),
    ),
  )
}

const percent = share => (share < 0.005 ? '<1' : `${Math.round(share * 100)}`)

function heatCell(cell) {
  if (!cell) return h('td', {})
  const {booked, room} = cell
  if (!room && !booked) return h('td', {class: 'closed', title: 'closed'}, '–')
  const share = room ? booked / room : 1
  const level = share >= 1 ? 'full' : `heat-${Math.ceil(share * 4)}`
  return h('td', {class: level, title: `${count(booked)} of ${count(room)}`}, booked ? percent(share) : '')
}
