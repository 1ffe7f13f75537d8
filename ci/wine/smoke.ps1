# SPDX-License-Identifier: Apache-2.0
# A smoke test for a real Windows node, which has never been run on one: run it as
# administrator on a node that is drained, with kube-proxy stopped:
#
#   .\smoke.ps1 -Tandem .\tandem.exe -Network cbr0 -Remote 10.244.2.2 -RemotePort 80
#
# It programs one Service with a cluster IP, a node port and a load balancer IP that
# leads to an endpoint that answers HTTP, asks it, restarts the proxy, asks again while
# HNS itself restarts, and cleans up. It prints what HNS returns for each load balancer
# and endpoint, on an overlay with the source VIP, next to what the emulator of the
# tests assumes (go doc ./windows/test/hnsemu), and how long each kind of call takes (list,
# read, create and delete endpoints and load balancers): send it in when they differ. Each "ok" line names a check that passed; it ends with an error otherwise, and removes
# what it has made either way.
param(
  [string]$Tandem = ".\tandem.exe",
  [Parameter(Mandatory)][string]$Network,
  [Parameter(Mandatory)][string]$Remote,
  [int]$RemotePort = 80,
  [string]$Vip = "10.96.255.254",
  [string]$LoadBalancerVip = "203.0.113.254",
  [int]$NodePort = 32754
)
$ErrorActionPreference = "Stop"
$dir = New-Item -ItemType Directory (Join-Path $env:TEMP ("tandem-smoke-" + [guid]::NewGuid()))
$env:KUBE_NETWORK = $Network
@"
apiVersion: v1
kind: Service
metadata: {name: smoke, namespace: default}
spec: {type: LoadBalancer, clusterIP: $Vip, clusterIPs: [$Vip], ports: [{name: p, port: 80, nodePort: $NodePort}]}
status: {loadBalancer: {ingress: [{ip: $LoadBalancerVip}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: smoke-a, namespace: default, labels: {kubernetes.io/service-name: smoke}}
addressType: IPv4
ports: [{name: p, port: $RemotePort}]
endpoints: [{addresses: [$Remote], nodeName: another, conditions: {ready: true}}]
"@ | Set-Content (Join-Path $dir "smoke.yaml")

$script:runs = 0
function Start-Proxy {
  $script:runs++
  Start-Process $Tandem -PassThru -NoNewWindow -RedirectStandardError "$dir-$script:runs.log" -ArgumentList "run", "--manifests", $dir, "--proxy-mode", "kernelspace", "--log-level", "debug", "--logging-format", "json"
}
# Times prints how long each kind of call took that the proxy has made, and names the
# kinds that it has not made.
function Times {
  $calls = @(Get-Content "$dir-*.log" | Where-Object { $_ -match '"msg":"HNS call"' } | ConvertFrom-Json)
  foreach ($kind in "list networks", "list endpoints", "read endpoint", "create endpoint", "delete endpoint", "list load balancers", "read load balancer", "create load balancer", "delete load balancer") {
    $ms = $calls | Where-Object { $_.call -like "$kind*" } | Measure-Object ms -Average -Minimum -Maximum
    if ($ms.Count -gt 0) { "time: ${kind}: $($ms.Count) calls, $($ms.Minimum) to $($ms.Maximum) ms, $([int]$ms.Average) on average" } else { "time: ${kind}: no call" }
  }
}
function Balancers($vip) { (Get-HnsPolicyList | Where-Object { $_.Policies.VIPs -contains $vip } | ForEach-Object ID) }
function NodePortBalancers { (Get-HnsPolicyList | Where-Object { $_.Policies.ExternalPort -contains $NodePort } | ForEach-Object ID) }
function Expect($what, [scriptblock]$holds) {
  foreach ($i in 1..60) { if (& $holds) { "ok: $what"; return }; Start-Sleep 1 }
  throw "failed: $what"
}
# Compare prints a rule of the emulator next to what this HNS does.
function Compare($rule, $assumed, [scriptblock]$here) {
  "rule $rule"
  "  assumed: $assumed"
  try { "  here:    " + ((& $here | Out-String).Trim() -replace "\r?\n", "`n           ") } catch { "  here:    failed: $_" }
}
$answers = { try { (Invoke-WebRequest -UseBasicParsing -TimeoutSec 2 "http://$Vip/").StatusCode -gt 0 } catch { $null -ne $_.Exception.Response } }
$before = @(Get-HnsPolicyList).Count
$proxy = $null
try {
  $proxy = Start-Proxy
  $began = Get-Date
  Expect "one load balancer for $Vip" { @(Balancers $Vip).Count -eq 1 }
  "the first load balancer came after $([int]((Get-Date) - $began).TotalMilliseconds) ms"
  Expect "one load balancer for $LoadBalancerVip" { @(Balancers $LoadBalancerVip).Count -eq 1 }
  Expect "one load balancer for node port $NodePort" { @(NodePortBalancers).Count -eq 1 }
  Expect "$Vip answers" $answers
  "there are $(@(Get-HnsPolicyList).Count) load balancers and $(@(Get-HnsEndpoint).Count) endpoints"
  "what HNS returns for load balancers:"; hnsdiag list loadbalancers -d
  "what HNS returns for endpoints:"; hnsdiag list endpoints -d
  "what Tandem reads:"; & $Tandem hns dump -o json
  Compare "version-2022" "13.2 is Server 2022" { "$((Get-HnsGlobals -ErrorAction SilentlyContinue | ConvertTo-Json -Compress)) on $([Environment]::OSVersion.Version)" }
  Compare "drops-external" "VipExternalIP may be dropped (DropExternal)" { Get-HnsPolicyList | Where-Object { $_.ID -eq (NodePortBalancers) } | ConvertTo-Json -Depth 8 }
  Compare "normalises" "other settings may be normalised (Normalise)" { Get-HnsPolicyList | Where-Object { $_.ID -eq (Balancers $LoadBalancerVip) } | ConvertTo-Json -Depth 8 }
  Compare "degraded" "State 4 is a degraded load balancer, 5 an endpoint" { "states of load balancers: $((Get-HnsPolicyList).State -join ' '); of endpoints: $((Get-HnsEndpoint).State -join ' '); last errors (Health): $((@(Get-HnsPolicyList) + @(Get-HnsEndpoint)).Health.LastErrorCode -join ' ')" }
  Compare "allotted" "an endpoint without an address gets the lowest free" { Get-HnsEndpoint | Where-Object Name -eq "tandem-source-vip" | ConvertTo-Json -Depth 8 }
  Compare "endpoints-exist" "a load balancer's endpoints must exist: 0x803b0002" { "endpoints of load balancers: $((Get-HnsPolicyList).References -join ' ')" }
  $id = Balancers $Vip
  Stop-Process $proxy; $proxy = Start-Proxy; Start-Sleep 10
  Expect "a restart of the proxy leaves the load balancer alone" { (Balancers $Vip) -eq $id }
  Restart-Service hns -Force
  Compare "restarted" "a restarted HNS has all objects again" { "$(@(Balancers $Vip).Count) of 1 load balancers for $Vip" }
  Expect "after a restart of HNS there is one again" { @(Balancers $Vip).Count -eq 1 }
  Expect "$Vip answers" $answers
  Compare "in-use" "endpoints in use cannot be deleted: 0x803b002c" { hnsdiag delete endpoints (Get-HnsEndpoint | Where-Object Name -eq "tandem_$Remote").ID }
  Remove-Item (Join-Path $dir "smoke.yaml")
  Expect "without the Service there is no load balancer for $Vip" { @(Balancers $Vip).Count -eq 0 }
  Start-Sleep 60 # endpoints that nothing needs stay for a minute
  Expect "nor its endpoint, after a minute" { @(Get-HnsEndpoint | Where-Object Name -eq "tandem_$Remote").Count -eq 0 }
  Times
} finally {
  if ($proxy) { Stop-Process $proxy -ErrorAction SilentlyContinue }
  & $Tandem cleanup --proxy-mode kernelspace
  Remove-Item -Recurse $dir
  Remove-Item "$dir-*.log" -ErrorAction SilentlyContinue
}
Expect "cleanup leaves everybody else's" { @(Get-HnsPolicyList).Count -eq $before }
