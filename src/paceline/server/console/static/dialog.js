// Asks before something is done that can't be undone, or that needs a value first.

import {isRepeated} from './busy.js'
import {at, h, show} from './dom.js'

/** Whether the user agrees. Escape, or the other button, is no. */
export const agreed = async (title, text, verb, options = {}) => (await asked(title, text, verb, options)) !== null

/** The values of the fields if the user agrees, by their names; null if not. */
export function asked(title, text, verb, {kind = 'danger', fields = []} = {}) {
  const dialog = /** @type {HTMLDialogElement} */ (at('dialog'))
  return new Promise(resolve => {
    let given = null
    const leave = () => dialog.close()
    show(
      dialog,
      h('h2', {id: 'dialog-title'}, title),
      h('p', {}, text),
      h(
        'form',
        {
          class: 'form',
          onsubmit: event => {
            event.preventDefault()
            given = Object.fromEntries(new FormData(event.currentTarget))
            dialog.close()
          },
        },
        fields,
        h(
          'div',
          {class: 'row end'},
          h('button', {type: 'button', autofocus: true, onclick: leave}, 'Leave it'),
          h('button', {class: kind, onclick: event => isRepeated(event) && event.preventDefault()}, verb),
        ),
      ),
    )
    dialog.addEventListener('close', () => resolve(given), {once: true})
    dialog.showModal()
  })
}
