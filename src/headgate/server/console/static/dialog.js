// Asks before something is done that can't be undone.

import {at, h, show} from './dom.js'

/** Whether the user agrees. Escape, or the other button, is no. */
export function agreed(title, text, verb, {kind = 'danger'} = {}) {
  const dialog = /** @type {HTMLDialogElement} */ (at('dialog'))
  return new Promise(resolve => {
    let yes = false
    const close = answer => () => {
      yes = answer
      dialog.close()
    }
    show(
      dialog,
      h('h2', {id: 'dialog-title'}, title),
      h('p', {}, text),
      h(
        'div',
        {class: 'row end'},
        h('button', {type: 'button', autofocus: true, onclick: close(false)}, 'Leave it'),
        h('button', {type: 'button', class: kind, onclick: close(true)}, verb),
      ),
    )
    dialog.addEventListener('close', () => resolve(yes), {once: true})
    dialog.showModal()
  })
}
