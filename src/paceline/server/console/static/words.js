// Times, spans and numbers as people read them.

import {h} from './dom.js'

const CLOCK = new Intl.DateTimeFormat(undefined, {hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false})
const DAY = new Intl.DateTimeFormat(undefined, {year: 'numeric', month: 'short', day: '2-digit'})
const COUNT = new Intl.NumberFormat('en')

export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone

export const count = value => (value === null || value === undefined ? '–' : COUNT.format(value))

/** The time of day here, with the day if it is not today; the exact UTC time when pointed at. */
export function moment(iso, {fractions = false} = {}) {
  if (!iso) return '–'
  const date = new Date(iso)
  const fraction = fractions ? `.${String(date.getMilliseconds()).padStart(3, '0')}` : ''
  const day = date.toDateString() === new Date().toDateString() ? '' : `${DAY.format(date)} `
  return h('time', {datetime: iso, title: iso}, `${day}${CLOCK.format(date)}${fraction}`)
}

export const clock = iso => CLOCK.format(new Date(iso))

/** A span in words: `850 ms`, `2.4 s`, `3 min 20 s`, `5 h 12 min`, `2 d 3 h`. */
export function span(ms) {
  if (ms === null || ms === undefined) return '–'
  if (ms < 0) return `−${span(-ms)}`
  if (ms < 1000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${Number((ms / 1000).toFixed(1))} s`
  const [size, unit, rest, under] =
    ms < 3_600_000
      ? [60_000, 'min', 1000, 's']
      : ms < 86_400_000
        ? [3_600_000, 'h', 60_000, 'min']
        : [86_400_000, 'd', 3_600_000, 'h']
  const whole = Math.floor(ms / size)
  const left = Math.floor((ms - whole * size) / rest)
  return left ? `${whole} ${unit} ${left} ${under}` : `${whole} ${unit}`
}

/** How far a time is from now: `in 3 min`, `2 h ago`. */
export function distance(iso) {
  if (!iso) return ''
  const ms = Date.parse(iso) - Date.now()
  return ms >= 0 ? `in ${span(ms)}` : `${span(-ms)} ago`
}

export const rate = value =>
  value === null || value === undefined
    ? '–'
    : value >= 100
      ? COUNT.format(Math.round(value))
      : value >= 10
        ? value.toFixed(1)
        : value.toFixed(value ? 2 : 0)

const DURATION = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/

/** An ISO-8601 duration in milliseconds. */
export function durationMs(text) {
  const parts = DURATION.exec(text)
  if (!parts) return NaN
  const [days, hours, minutes, seconds] = parts.slice(1).map(part => Number(part ?? 0))
  return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
}

/** An ISO-8601 duration in words. */
export const spanOf = text => (text ? span(durationMs(text)) : '–')

/** What a `datetime-local` field holds, as an instant. */
export const instant = local => (local ? new Date(local).toISOString() : undefined)

/** An instant as a `datetime-local` field takes it; nothing for what is no instant. */
export function localTime(iso) {
  const ms = Date.parse(iso)
  if (Number.isNaN(ms)) return ''
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19)
}
