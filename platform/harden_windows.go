package platform

import "golang.org/x/sys/windows"

// Harden makes the process load DLLs from the system's folder only, never from
// the one it lies in or was started from. It is for the first line of a program;
// systems that cannot do it have no such folders.
func Harden() { _ = windows.SetDefaultDllDirectories(windows.LOAD_LIBRARY_SEARCH_SYSTEM32) }
