#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first process of the guest. $GUEST_DIR holds the command to run. With
# $GUEST_CONSOLE the guest is QEMU's, and that is where the program prints. With
# $GUEST_CLOCK=instructions its time is how many the processor has done, 4 ns each.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /run/tmp /run/bin
modprobe=$(command -v modprobe)

if [ -n "${GUEST_CONSOLE-}" ]; then
  mount -t devtmpfs dev /dev
  exec >"$GUEST_CONSOLE" 2>&1
  mkdir -p /dev/shm /dev/pts
  mount -t tmpfs shm /dev/shm
  mount -t devpts pts /dev/pts
else
  # UML's modules are in a folder where modprobe does not look by itself, and
  # it has no nf_tables for IP, so iptables must be the legacy one.
  mkdir -p /run/root/lib/modules
  ln -s "/usr/lib/uml/modules/$(uname -r)" /run/root/lib/modules/
  printf '#!/bin/sh\nexec %s -d /run/root "$@"\n' "$modprobe" >/run/bin/modprobe
  chmod +x /run/bin/modprobe
  for tool in iptables ip6tables; do
    for verb in "" -save -restore; do
      ln -s /usr/sbin/xtables-legacy-multi "/run/bin/$tool$verb"
    done
  done
  modprobe=/run/bin/modprobe
fi
echo "$modprobe" >/proc/sys/kernel/modprobe
for module in ipv6 ip_vs veth dummy nf_conntrack_netlink sctp; do
  "$modprobe" -q "$module"
done
export PATH=/run/bin:$PATH TMPDIR=/run/tmp
# shellcheck disable=SC3045 # busybox has it
ulimit -n 524288 # descriptors, as systemd allows; a relay takes two for each connection
ip link set lo up

echo "--the-program-begins--"
sh "$GUEST_DIR/command" </dev/null
echo "--the-program-ends--$?"
sync
echo o >/proc/sysrq-trigger
sleep 60
