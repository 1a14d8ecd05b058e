# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The part "tools" of check.sh: fi_info's list of offers, and the reasons in the log for what it does not list.

# The fabrics in a listing of fi_info, each once, in order.
fabrics() {
	sed -n 's/^ *fabric: //p' | awk '!seen[$0]++' | paste -s -d ' '
}

part_tools() {
	local provider got
	if ! command -v fi_info >/dev/null; then
		left_out tools "no fi_info here"
		return
	fi
	if [ "$name" != gdrfab ]; then
		left_out tools "they ask gdrfab alone"
		return
	fi
	# The file links no library of libfabric's, so that it calls whichever copy loads it.
	if readelf -d "$plugin" | grep -q 'NEEDED.*libfabric'; then
		bad exports "the file links a libfabric of its own"
	elif [ "$(readelf -W --dyn-syms "$plugin" | awk '$5 == "GLOBAL" && $7 != "UND" { print $8 }')" != fi_prov_ini ]; then
		bad exports "more than fi_prov_ini, or not even that"
	else
		ok exports
	fi
	for provider in $providers; do
		over "$provider"
		timeout 20 fi_info -p gdrfab -t FI_EP_MSG >"$out/info" 2>&1
		got=$(fabrics <"$out/info")
		if [ "$got" = "$provider" ]; then
			ok "offers_$provider"
		else
			bad "offers_$provider" "FI_GDRFAB_PROVIDERS=$provider gives the fabrics '$got'" "$out/info"
		fi
		timeout 20 fi_info -p "gdrfab;ofi_rxm" -t FI_EP_RDM >"$out/info" 2>&1
		got=$(fabrics <"$out/info")
		if [ "$got" = "$provider" ] && grep -q '^provider: gdrfab;ofi_rxm$' "$out/info"; then
			ok "offers_${provider}_with_rxm"
		else
			bad "offers_${provider}_with_rxm" "the fabrics are '$got'" "$out/info"
		fi
		# Every field of an info can be printed.
		if timeout 20 fi_info -v -p gdrfab >"$out/info" 2>&1 && grep -q 'fi_domain_attr:' "$out/info"; then
			ok "prints_all_of_$provider"
		else
			bad "prints_all_of_$provider" "fi_info -v fails" "$out/info"
		fi
	done
	for order in "shm,tcp" "tcp,shm"; do
		over "$order"
		timeout 20 fi_info -p gdrfab -t FI_EP_MSG >"$out/info" 2>&1
		got=$(fabrics <"$out/info")
		if [ "$got" = "${order/,/ }" ]; then
			ok "order_$order"
		else
			bad "order_$order" "the fabrics are '$got'" "$out/info"
		fi
	done
	over nonsense
	if FI_LOG_LEVEL=warn timeout 20 fi_info -p gdrfab >"$out/info" 2>&1; then
		bad unknown_name "FI_GDRFAB_PROVIDERS=nonsense offers something" "$out/info"
	elif grep -q 'nonsense.*shm' "$out/info"; then
		ok unknown_name
	else
		bad unknown_name "no words about it" "$out/info"
	fi
	unset FI_GDRFAB_PROVIDERS
	timeout 20 fi_info --env >"$out/info" 2>&1
	if grep -q 'FI_GDRFAB_PROVIDERS' "$out/info"; then
		ok parameters
	else
		bad parameters "fi_info --env does not know FI_GDRFAB_PROVIDERS"
	fi
	if timeout 20 fi_info -p tcp >"$out/info" 2>&1 && timeout 20 fi_info -l 2>&1 | grep -q '^gdrfab:'; then
		ok others_stay
	else
		bad others_stay "fi_info lists not both tcp and gdrfab" "$out/info"
	fi
	# A request that cannot be met has its reason in the log.
	FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab timeout 20 fi_info -p gdrfab -t FI_EP_DGRAM >"$out/info" 2>&1
	if grep -q 'gdrfab:.*ep_attr->type: .* wanted, FI_EP_MSG and FI_EP_RDM offered' "$out/info"; then
		ok words_in_the_log
	else
		bad words_in_the_log "no line says what was left out" "$out/info"
	fi
	FI_OFI_RXM_USE_SRX=1 FI_LOG_LEVEL=info FI_LOG_PROV=gdrfab timeout 20 fi_info -p "gdrfab;ofi_rxm" -t FI_EP_RDM >"$out/info" 2>&1
	if grep -q 'gdrfab:.*rx_ctx_cnt: FI_SHARED_CONTEXT wanted' "$out/info"; then
		ok words_about_shared_contexts
	else
		bad words_about_shared_contexts "no line says why ofi_rxm gets none" "$out/info"
	fi
}
