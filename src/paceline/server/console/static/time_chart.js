// Lines over time, drawn by uPlot (vendor/). All charts of a page share cursor and zoom.

import {h} from './dom.js'
import {count, rate} from './words.js'

const UPLOT = './vendor/uPlot.esm.js'
const HEIGHT = 220
const SYNC = 'charts'
const DATE = '\n{YYYY}-{MM}-{DD}'
/** What stands at the ticks: from so many seconds between them on, the usual text, and what is added when the day is new. */
const TICKS = [
  [86_400, '{MMM} {DD}', '\n{YYYY}', null, null, null, null, null, 1],
  [1, '{HH}:{mm}', DATE, null, DATE, null, null, null, 1],
]

let loading

/** uPlot, loaded when the first chart is drawn. */
export const library = () => {
  loading ??= import(UPLOT).then(module => module.default)
  return loading
}

/** CSS colors with light-dark() mean nothing to a canvas: a hidden element resolves them. */
function resolved(name) {
  const probe = h('i', {class: `probe ${name}`, hidden: true})
  document.body.append(probe)
  const value = getComputedStyle(probe).color
  probe.remove()
  return value
}

/** A chart: a title, the drawing, and its numbers in words.
 *  `draw(times, lines)`: times in seconds; lines are {label, values, kind, dash}; marks are times. */
export class TimeChart {
  #plot
  #shape = ''
  #whole = [0, 0]
  #marks = []
  /** Called when another part of the times is in sight. */
  onzoom = () => {}

  constructor(title, unit, controls = null) {
    this.title = title
    this.unit = unit
    this.canvas = h('div', {class: 'plot', role: 'img', 'aria-label': title})
    this.words = h('p', {class: 'soft plot-words'})
    this.element = h('section', {class: 'card'}, h('div', {class: 'row between'}, h('h2', {}, title), controls), [
      this.canvas,
      this.words,
    ])
    // In the next frame: a size that changes while sizes are observed is an error of the window.
    new ResizeObserver(() => requestAnimationFrame(() => this.#resize())).observe(this.canvas)
  }

  #resize() {
    const {width} = this.#size()
    if (this.#plot && this.#plot.width !== width) this.#plot.setSize(this.#size())
  }

  #size = () => ({width: Math.max(200, this.canvas.clientWidth), height: HEIGHT})

  /** A zoom stays as it is, unless the `whole` range is to be shown. */
  async draw(times, lines, {utc, whole, marks = []}) {
    const uPlot = await library()
    const told = lines.map(line => summary(line, this.unit)).join(' · ')
    this.#marks = marks
    this.words.textContent = told
    this.canvas.setAttribute('aria-label', `${this.title}: ${told}`)
    const data = [times, ...lines.map(line => line.values)]
    const [min, max] = this.range
    const zoomed = !whole && this.zoomed
    this.#whole = [times[0], times.at(-1)]
    const shape = JSON.stringify([utc, lines.map(line => [line.label, line.kind, line.dash])])
    if (shape !== this.#shape) {
      this.#plot?.destroy()
      this.#plot = new uPlot(this.#options(uPlot, lines, utc), data, this.canvas)
      this.#shape = shape
    } else {
      this.#plot.setData(data, false)
    }
    this.zoom(zoomed ? [min, max] : this.#whole)
  }

  /** Shows a part of the times, or all of them. */
  zoom([min, max] = this.#whole) {
    this.#plot?.setScale('x', {min, max})
  }

  /** Whether only a part of the times is in sight. */
  get zoomed() {
    const [min, max] = this.range
    return Boolean(this.#plot) && (min !== this.#whole[0] || max !== this.#whole[1])
  }

  /** What is in sight, in seconds. */
  get range() {
    const {min, max} = this.#plot?.scales.x ?? {}
    return [min, max]
  }

  redraw() {
    this.#plot?.redraw(false)
  }

  #drawMarks(plot) {
    const {ctx, bbox} = plot
    ctx.save()
    ctx.strokeStyle = resolved('busy')
    ctx.setLineDash([3, 3])
    for (const time of this.#marks) {
      const at = plot.valToPos(time, 'x', true)
      if (at < bbox.left || at > bbox.left + bbox.width) continue
      ctx.beginPath()
      ctx.moveTo(at, bbox.top)
      ctx.lineTo(at, bbox.top + bbox.height)
      ctx.stroke()
    }
    ctx.restore()
  }

  #options(uPlot, lines, utc) {
    const axis = {
      stroke: () => resolved('soft'),
      grid: {stroke: () => resolved('line'), width: 1},
      ticks: {show: false},
    }
    return {
      ...this.#size(),
      tzDate: utc ? seconds => uPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC') : undefined,
      hooks: {setScale: [() => this.onzoom()], draw: [plot => this.#drawMarks(plot)]},
      cursor: {sync: {key: SYNC, setSeries: false}, drag: {x: true, y: false}},
      scales: {y: {range: (_plot, _low, high) => [0, (high || 1) * 1.08]}},
      axes: [
        {...axis, values: TICKS},
        {...axis, size: 58, values: (_plot, ticks) => ticks.map(short)},
      ],
      series: [
        {label: utc ? 'Time (UTC)' : 'Time', value: '{YYYY}-{MM}-{DD} {HH}:{mm}'},
        ...lines.map(({label, kind, dash}) => ({
          label,
          stroke: () => resolved(kind),
          width: 1.6,
          dash,
          spanGaps: Boolean(dash),
          points: {show: false},
          value: (_plot, value) => (value === null ? '–' : `${short(value)} ${this.unit}`),
        })),
      ],
    }
  }
}

const short = value => (Number.isInteger(value) || value >= 100 ? count(Math.round(value)) : rate(value))

function summary({label, values}, unit) {
  const known = values.filter(value => value !== null && value !== undefined)
  if (!known.length) return `${label}: nothing yet`
  return `${label}: ${short(known.at(-1))} at last, ${short(Math.max(...known))} at most ${unit}`
}
