// SPDX-License-Identifier: Apache-2.0

package config

// Setting is one setting. The list of them, Settings, is the only
// place that knows a flag, a field or a default.
type Setting struct {
	Path string // of the field in a KubeProxyConfiguration, such as "iptables.masqueradeBit"; empty for none
	Flag string // without its dashes; empty for none. A flag that several settings have sets them all
	Doc  string // what it does, in sentences

	// Value is the setting's value in a Config.
	Value func(*Config) Value

	// Restart is why a running proxy cannot apply a change; empty when it
	// can.
	Restart string

	// Counts reports whether the setting is looked at in a mode; nil is always.
	// kube-proxy has the same setting for several modes in several sections.
	Counts func(Mode) bool

	// Ignored returns which of its words have no effect; nil where all have one.
	Ignored func(words []string) string

	// Unused is why Tandem accepts the setting and ignores it; empty
	// for those that do something.
	Unused string

	// Deprecated is what replaces the setting; empty for all but a few. It is a
	// second way to set what another setting sets.
	Deprecated string

	// Joined means that the words of the flag are put before those of the file, and
	// do not replace them.
	Joined bool

	// BesideFile means that the flag is used although there is a file. kube-proxy
	// ignores most flags then.
	BesideFile bool

	// ZeroCounts means that 0, false and "" are values in a file, too. For most
	// fields they mean "not set": the default holds.
	ZeroCounts bool

	// Empty is the value that a file gives by an empty text, where that is the
	// word for it in files.
	Empty string
}

// Name returns the setting's name: its field, else its flag with the dashes.
func (s *Setting) Name() string {
	if s.Path != "" {
		return s.Path
	}
	return "--" + s.Flag
}

// Tried reports whether a running proxy applies a change where the new value
// works; otherwise it waits for a restart.
func (s *Setting) Tried() bool { return s.Restart == restartMode }

// Why a change needs a restart.
const (
	restartStart  = "used at startup only"
	restartMode   = "switching the mode failed"
	restartRules  = "installed rules contain it"
	restartSource = "the source of Services is opened at startup"
	restartBind   = "the address is bound at startup"
	restartNode   = "the Node is chosen at startup"
	restartLog    = "the log is opened at startup"
	restartSystem = "the system is configured at startup"
)

// Where settings are looked at. The section iptables is for every mode
// without one of its own, also for none, as in kube-proxy.
func inIPVS(m Mode) bool      { return m == ipvs }
func inNFTables(m Mode) bool  { return m == NFTables }
func notNFTables(m Mode) bool { return !inNFTables(m) }
func inOthers(m Mode) bool    { return !inNFTables(m) && !inIPVS(m) }
func onWindows(m Mode) bool   { return m == kernelspace || m == Auto }
func onNodePorts(m Mode) bool { return m == iptables || m == userspace || m == Auto }
