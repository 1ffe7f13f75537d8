// SPDX-License-Identifier: Apache-2.0

// Package windows makes what Windows nodes install Tandem with: an MSI, and a
// zip for `tandem install`.
//
//	tandem.exe ──▶ osslsigncode ──┬─▶ wixl ─▶ msibuild ─▶ osslsigncode ──▶ .msi
//	                              └─▶ zip ───────────────────────────────▶ .zip
//
// The MSI puts the program under Program Files and that folder into PATH, a
// configuration to be filled in under ProgramData, and registers the service, which
// starts with the system and recovers from failures (platform/service sets how at
// its first start, since an MSI cannot). It does not start the service: the
// configuration has to be right first.
//
// A newer version replaces an older one, and a release its candidates (1.3.0
// replaces 1.3.0-rc1); an older one is refused. An upgrade leaves the configuration
// unchanged and starts the service again. Where the new program finds a mistake in the
// configuration, or a file that it names and ordinary users may change, it is not
// installed (error 1603; 1722 in the log) and Windows brings the old one back: `tandem
// config check --here FILE` shows the errors. Programmed load balancers stay: see
// `tandem cleanup`.
//
//	start /wait msiexec /i tandem-1.2.3-windows-amd64.msi /qn
//	notepad C:\ProgramData\Tandem\config.yaml
//	sc.exe start tandem
//
// The service runs as LocalSystem. It starts only where the configuration, the kubeconfig and
// the manifests belong to the system or administrators, who alone may write them:
// `tandem config check --here FILE` shows what does not, and how to change it.
//
// In Windows PowerShell sc alone is Set-Content. The kubeconfig's user needs the
// ClusterRole system:node-proxier, as kube-proxy's has and the kubelet's has not.
//
// A shell that was open before has the old PATH: tandem is found in new ones. The
// zip is unpacked by hand and changes no PATH; `tandem install` wants to be run
// from a folder that ordinary users cannot write, such as Program Files.
//
// `make dist` makes both for amd64 and arm64, through the executable dist. It
// signs them when TANDEM_SIGN_CERTS and TANDEM_SIGN_KEY name a certificate and its
// key.
//
// The same input makes the same bytes, except for signatures, which have the time
// unless none is requested. It works on any system that has wixl and msibuild
// (Debian: wixl, msitools), and osslsigncode to sign.
package windows
