// The login. The token goes to the service once and comes back as a cookie no script can read.

import {call, Problem, Unreachable} from './api.js'
import {field, form, h, input} from './dom.js'

export function loginPage(root, done) {
  const token = input({
    type: 'password',
    name: 'token',
    required: true,
    maxlength: 512,
    autocomplete: 'current-password',
  })
  const told = h('p', {class: 'wrong', role: 'alert'})
  root.append(
    h(
      'div',
      {class: 'login card'},
      h('h1', {}, 'Log in'),
      h(
        'p',
        {},
        'With a token of this service, such as ',
        h('code', {}, 'paceline tokens create'),
        ' made. Its scopes decide what you may do here.',
      ),
      form(
        async () => {
          told.textContent = ''
          try {
            await call('POST', '/console/session', {token: token.value})
            token.value = ''
            await done()
          } catch (error) {
            told.textContent = wrong(error)
            token.select()
          }
        },
        h('input', {type: 'text', name: 'username', value: 'paceline', autocomplete: 'username', hidden: true}),
        field('Token', token),
        h('button', {class: 'main'}, 'Log in'),
        told,
      ),
    ),
  )
  token.focus()
  call('GET', '/console/session').then(
    session => {
      if (session.openid)
        root
          .querySelector('.login')
          .append(h('p', {}, h('a', {href: 'console/oidc/login'}, 'Log in with your organisation')))
    },
    error => {
      told.textContent = wrong(error)
    },
  )
}

function wrong(error) {
  if (error instanceof Problem && error.status === 429)
    return 'Too many wrong tokens from this address. Wait a minute and try again.'
  if (error instanceof Problem && error.status === 401) return 'That is no token of this service, or it was revoked.'
  if (error instanceof Unreachable) return 'The service does not answer. Try again.'
  return error.message
}
