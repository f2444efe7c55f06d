// The box at the top: an id is written there.

import {at} from './dom.js'

/** Makes the box at the top work: Enter searches, and / goes there from anywhere. */
export function watchBox(shell) {
  const box = /** @type {HTMLInputElement} */ (at('search-box'))
  at('search').addEventListener('submit', event => {
    event.preventDefault()
    if (box.value.trim()) shell.go('search', {q: box.value.trim()})
  })
  addEventListener('hashchange', () => {
    if (!location.hash.startsWith('#/search') && document.activeElement !== box) box.value = ''
  })
  document.addEventListener('keydown', event => {
    const target = /** @type {HTMLElement} */ (event.target)
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || at('search').hidden) return
    if (target.closest('input, select, textarea, [contenteditable], dialog')) return
    event.preventDefault()
    box.focus()
    box.select()
  })
}
