// SPDX-License-Identifier: Apache-2.0

// Package folders keeps what Tandem writes on a Windows node out of reach of
// ordinary users: in %ProgramData% each user may create files and folders, and
// keeps control over them.
//
// Who may write is judged by the text of a security descriptor (SDDL), which Windows makes of
// it: so the judgement is pure, is tested on any system, and refuses what it does not
// understand. The entries that x/sys/windows hands out are memory of Windows, and cannot be
// made elsewhere.
package folders
