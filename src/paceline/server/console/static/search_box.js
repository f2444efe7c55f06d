// The box at the top, from anywhere by / or Ctrl+K: pages, actions, and whatever the service finds, by keyboard alone.

import {address} from './address.js'
import {get, query} from './api.js'
import {at, h, update} from './dom.js'
import {PAGES, PLACES} from './pages.js'
import {FOUND} from './places.js'

const PAUSE_MS = 150 // without a key, until the service is asked
const SHOWN = 12

/** @typedef {{words: string, kind: string, to: any[]}} Choice */

/** What can be done from anywhere, and the scope that it needs.
 *  @type {[string, string, any[]][]} */
const ACTIONS = [
  ['New config', 'admin', ['configs', '']],
  ['New plan', 'admin', ['limits', '']],
  ['New periodic task', 'admin', ['periodic']],
  ['Re-plan booked slots', 'admin', ['replan']],
  ['Try a key under its limits', 'assign', ['limits']],
  ['Forecast a backlog', 'read', ['slots']],
]

/** Pages and actions whose words hold the text.
 *  @returns {Choice[]} */
function ownChoices(text, may) {
  const holds = words => words.toLowerCase().includes(text.toLowerCase())
  const pages = Object.entries(PLACES).flatMap(([place, names]) =>
    names
      .filter(name => (!PAGES[name].needs || may(PAGES[name].needs)) && (holds(PAGES[name].title) || holds(place)))
      .map(name => ({words: PAGES[name].title, kind: place, to: [name]})),
  )
  const actions = ACTIONS.filter(([words, scope]) => may(scope) && holds(words))
  return [...pages, ...actions.map(([words, , to]) => ({words, kind: 'action', to}))]
}

/** What the service found, and what is done with it most.
 *  @returns {Choice[]} */
const foundChoices = (results, may) =>
  results.flatMap(each => [
    {words: each.id, kind: FOUND[each.kind].name, to: FOUND[each.kind].place(each)},
    ...(FOUND[each.kind].actions ?? [])
      .filter(({needs}) => may(needs))
      .map(({words, place}) => ({words: `${words} ${each.id}`, kind: 'action', to: place(each)})),
  ])

/** Makes the box at the top work: Enter goes to the chosen one, or searches if none is chosen. */
export function watchBox(shell) {
  const [box, list] = [/** @type {HTMLInputElement} */ (at('search-box')), at('choices')]
  /** @type {Choice[]} */
  let choices = []
  let chosen = -1
  let waiting

  function draw() {
    list.hidden = !choices.length
    box.setAttribute('aria-expanded', String(!list.hidden))
    if (chosen < 0) box.removeAttribute('aria-activedescendant')
    else box.setAttribute('aria-activedescendant', `choice-${chosen}`)
    update(
      list,
      choices.map(({words, kind, to}, n) =>
        h(
          'a',
          {
            role: 'option',
            id: `choice-${n}`,
            tabindex: -1,
            href: address(...to),
            'aria-selected': String(n === chosen),
          },
          h('span', {}, words),
          h('small', {}, kind),
        ),
      ),
    )
    list.children[chosen]?.scrollIntoView({block: 'nearest'})
  }

  function close() {
    clearTimeout(waiting)
    choices = []
    chosen = -1
    draw()
  }

  function offer() {
    const text = box.value.trim()
    clearTimeout(waiting)
    chosen = -1
    choices = text ? ownChoices(text, shell.may).slice(0, SHOWN) : []
    draw()
    if (text) waiting = setTimeout(() => ask(text), PAUSE_MS)
  }

  async function ask(text) {
    const found = await shell.attempt(() => get(query('/api/v1/search', {q: text})))
    if (!found || box.value.trim() !== text || document.activeElement !== box) return
    choices = [...ownChoices(text, shell.may), ...foundChoices(found.results, shell.may)].slice(0, SHOWN)
    draw()
  }

  at('search').addEventListener('submit', event => {
    event.preventDefault()
    const [text, choice] = [box.value.trim(), choices[chosen]]
    close()
    if (choice) {
      box.value = ''
      box.blur()
      shell.go(...choice.to)
    } else if (text) shell.go('search', {q: text})
  })
  box.addEventListener('input', offer)
  box.addEventListener('keydown', event => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key]
    if (event.key === 'Escape') close()
    if (!step || !choices.length) return
    event.preventDefault()
    chosen = (Math.max(chosen, step > 0 ? -1 : 0) + step + choices.length) % choices.length
    draw()
  })
  // What is pressed in the list must not take the focus before it is followed.
  list.addEventListener('pointerdown', event => event.preventDefault())
  list.addEventListener('click', () => {
    box.value = ''
    close()
  })
  box.addEventListener('blur', close)
  addEventListener('hashchange', () => {
    if (!location.hash.startsWith('#/search') && document.activeElement !== box) box.value = ''
  })
  document.addEventListener('keydown', event => {
    const target = /** @type {HTMLElement} */ (event.target)
    const isCalled =
      (event.key === 'k' && (event.ctrlKey || event.metaKey)) || (event.key === '/' && isPlain(event, target))
    if (!isCalled || event.altKey || at('search').hidden || target.closest('dialog')) return
    event.preventDefault()
    box.focus()
    box.select()
    offer()
  })
}

const isPlain = (event, target) =>
  !event.ctrlKey && !event.metaKey && !target.closest('input, select, textarea, [contenteditable]')
