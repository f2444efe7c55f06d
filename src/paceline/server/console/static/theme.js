// Light, dark, or as the system wishes. Loaded before the page is drawn, so that it is not drawn twice.

;(() => {
  const THEMES = ['system', 'light', 'dark']
  // Storage may be forbidden.
  const kept = () => {
    try {
      return localStorage.getItem('theme') ?? 'system'
    } catch {
      return 'system'
    }
  }
  let theme = THEMES.includes(kept()) ? kept() : 'system'

  const apply = () => {
    document.documentElement.dataset.theme = theme
    const button = document.getElementById('theme')
    if (!button) return
    button.textContent = `Theme: ${theme}`
  }

  const next = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]
    try {
      if (theme === 'system') localStorage.removeItem('theme')
      else localStorage.setItem('theme', theme)
    } catch {
      // It lasts as long as the page, then.
    }
    apply()
  }

  apply()
  addEventListener('DOMContentLoaded', () => {
    apply()
    document.getElementById('theme')?.addEventListener('click', next)
  })
})()
