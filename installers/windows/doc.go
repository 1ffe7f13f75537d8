// Package windows makes what Windows nodes install Tandem with: an MSI, and a
// zip for `tandem install`.
//
//	tandem.exe ──▶ osslsigncode ──┬─▶ wixl ─▶ msibuild ─▶ osslsigncode ──▶ .msi
//	                              └─▶ zip ───────────────────────────────▶ .zip
//
// The MSI puts the program under Program Files, a configuration to be filled in
// under ProgramData, and registers the service, which starts with the system and
// recovers from failures (platform/service sets how at its first start, since an
// MSI cannot). It does not start the service: the configuration has to be right
// first. An upgrade leaves the configuration as it is and starts the service
// again. Nothing that is programmed goes with it: see `tandem cleanup`.
//
//	msiexec /i tandem.msi /qn
//	notepad C:\ProgramData\Tandem\config.yaml
//	tandem start
//
// The same input makes the same bytes, but for signatures, which tell the time
// unless none is asked for. It works on any system that has wixl and msibuild
// (Debian: wixl, msitools), and osslsigncode to sign.
package windows
