// What lists have in common: filters and order in the address, and the way to the next page.

import {address} from './address.js'
import {field, form, h, input, link, select} from './dom.js'
import {count, instant, localTime, ZONE} from './words.js'

/** @typedef {{name: string, label: string, options?: (string | string[])[], time?: boolean, hint?: string,
 *             [attribute: string]: unknown}} Filter */

/** A form of filters; whatever is chosen becomes the page's address.
 *  @param {{go: (...parts: any[]) => void}} shell
 *  @param {string[]} parts
 *  @param {Record<string, string>} query
 *  @param {Filter[]} filters */
export function filterForm(shell, parts, query, filters) {
  const names = [...filters.map(({name}) => name), 'cursor']
  const others = Object.fromEntries(Object.entries(query).filter(([name]) => !names.includes(name)))
  const controls = filters.map(({name, label, options, time, hint, ...attributes}) => {
    const key = {name, 'data-key': `filter ${name}`}
    const value = query[name] ?? ''
    const control = options
      ? select([['', 'all'], ...options], {...key, value, onchange: () => apply()})
      : time
        ? input({...key, type: 'datetime-local', step: 1, value: localTime(value)})
        : input({...key, value, ...attributes})
    return field(label, control, time ? ZONE : hint)
  })
  const made = form(() => apply(), h('div', {class: 'row'}, controls, h('button', {'data-key': 'filter'}, 'Filter')))
  if (isNarrowed(query, filters)) made.firstChild?.append(link('Clear', ...parts, others))

  function apply() {
    const values = Object.fromEntries(new FormData(made))
    for (const {name, time} of filters) {
      values[name] = String(values[name]).trim()
      if (time) values[name] = instant(values[name]) ?? ''
    }
    shell.go(...parts, {...others, ...values})
  }
  return made
}

/** The filters that are set, as the API takes them. */
export const chosen = (query, filters) =>
  Object.fromEntries(filters.map(({name}) => [name, query[name]]).filter(([, value]) => value))

export const isNarrowed = (query, filters) => filters.some(({name}) => query[name])

/** The way to the first and to the next page. */
export const pager = (parts, query, next) =>
  h(
    'nav',
    {class: 'row', 'aria-label': 'Pages of the list'},
    query.cursor && link('First page', ...parts, {...query, cursor: undefined}),
    next && link('Next page', ...parts, {...query, cursor: next}),
  )

export const MOST_COUNTED = 100_000

/** A line that says how many things a list has in all, as the API counted them; of none, the list itself says more. */
export const totalOf = (total, one, many) =>
  total > 0 &&
  h(
    'p',
    {class: 'soft'},
    `${total > MOST_COUNTED ? `More than ${count(MOST_COUNTED)}` : count(total)} ${total === 1 ? one : many}`,
  )

/** A heading that sorts the list by its column: upwards, and pressed again downwards. `first` is the usual order. */
export function sortHeading(text, name, parts, query, {kind = '', first = 'id'} = {}) {
  const sorted = query.sort || first
  const [down, up] = [sorted === `-${name}`, sorted === name]
  const to = up ? `-${name}` : name
  const mark = up ? ' ▲' : down ? ' ▼' : ''
  const href = address(...parts, {...query, sort: to, cursor: undefined})
  const shown = h('a', {href, 'data-key': `sort ${name}`}, text, mark && h('span', {'aria-hidden': 'true'}, mark))
  return [shown, kind, up ? 'ascending' : down ? 'descending' : undefined]
}
