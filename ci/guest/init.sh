#!/bin/sh
# The first process of the guest. $UML_DIR is the only place where it can write
# to the host; it holds the command to run and takes its exit code.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /run/tmp /run/bin /run/uml /run/root/lib/modules
mount -t hostfs -o "$UML_DIR" uml /run/uml

# The modules of this kernel are in a folder of Debian's package, where modprobe
# does not look by itself.
ln -s "/usr/lib/uml/modules/$(uname -r)" /run/root/lib/modules/
printf '#!/bin/sh\nexec /usr/sbin/modprobe -d /run/root "$@"\n' >/run/bin/modprobe
chmod +x /run/bin/modprobe
echo /run/bin/modprobe >/proc/sys/kernel/modprobe
/run/bin/modprobe -a ipv6 ip_vs veth dummy nf_conntrack_netlink sctp

# This kernel has no nf_tables for IP, so iptables must be the legacy one.
for tool in iptables ip6tables; do
  for verb in "" -save -restore; do
    ln -s "/usr/sbin/xtables-legacy-multi" "/run/bin/$tool$verb"
  done
done
export PATH=/run/bin:$PATH TMPDIR=/run/tmp
ip link set lo up

echo "$UML_BEGIN"
sh /run/uml/command </dev/null
echo $? >/run/uml/exit
echo "$UML_END"
echo o >/proc/sysrq-trigger
sleep 60
